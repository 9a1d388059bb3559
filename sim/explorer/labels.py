"""LABELS in an exploration: one label is one register, and one order of its changes has to fit all clients."""

from __future__ import annotations

from collections.abc import Iterable

from quorumq.core.messages import LabelChange, LabelsReply, LabelsRequest

LABEL = "l"
NO_TEXT = -1
"""Text of the label before its first change. Each change writes a number of its own."""


def labels_request(topic: str, text: int | None) -> LabelsRequest:
    """Return a change of the label to ``text``, or a read if that is None."""
    return LabelsRequest(topic, () if text is None else (LabelChange(LABEL, str(text)),))


def text_of(reply: LabelsReply) -> int:
    """Return the text that an answer shows."""
    return next((int(label.text or NO_TEXT) for label in reply.labels if label.name == LABEL), NO_TEXT)


def disordered(operations: Iterable[tuple[int, tuple[int, ...]]]) -> str:
    """Return the promise that the answers break, or "".

    Args:
        operations: the text that each change wrote, or each answered read showed; and the texts of all operations that
            had been answered when it was asked for.

    Why: those texts are older than, or the same as, the text of the operation. If these pairs have a cycle, no order
    of the changes explains all answers.
    """
    pairs = {(older, text): None for text, before in operations for older in before if older != text}
    while pairs:
        newer = {text for _, text in pairs}
        kept = {pair: None for pair in pairs if pair[0] in newer}
        if len(kept) == len(pairs):
            return "labels: a read shows a text that a confirmed change, or an earlier read, had replaced"
        pairs = kept
    return ""
