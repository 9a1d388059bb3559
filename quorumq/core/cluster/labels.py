"""Labels of topics: small texts by name, in the topic's register. Each goes to its last writer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quorumq.core.messages import LabelChange
from quorumq.core.values import limits
from quorumq.core.values.types import STAMP_ZERO, Label, Stamp


def merge_labels(ours: Sequence[Label], theirs: Iterable[Label]) -> tuple[Label, ...]:
    """Return the later one of each name, by name.

    Why: two of one stamp are one write; the text decides all the same, so that the order of arrival never does.
    """
    if ours == theirs:  # as nearly always
        return tuple(ours)
    merged = {label.name: label for label in ours}
    for label in theirs:
        known = merged.get(label.name)
        if known is None or (label.stamp, label.text or "") > (known.stamp, known.text or ""):
            merged[label.name] = label
    return tuple(sorted(merged.values()))


def last_change(labels: Iterable[Label]) -> Stamp:
    """Return the stamp of the last change of any of these; zero without any."""
    return max((label.stamp for label in labels), default=STAMP_ZERO)


def size_of(labels: Iterable[Label]) -> int:
    """Return the bytes of names and texts."""
    return sum(len(label.name.encode()) + len((label.text or "").encode()) for label in labels)


def check_changes(changes: Sequence[LabelChange]) -> str:
    """Return the error in the changes of a request, or ""."""
    names: dict[str, None] = {}
    for name, text in changes:
        if not 1 <= len(name.encode()) <= limits.NAME_BYTES_MAX or not name.isprintable():
            return (
                f"a label is named {name[:50]!r}: a name must have 1 to {limits.NAME_BYTES_MAX} bytes, and only "
                "printable characters"
            )
        if name in names:
            return f"label {name[:50]!r} is given twice: give each name once"
        names[name] = None
        size = len((text or "").encode())
        if size > limits.LABEL_BYTES_MAX:
            return f"label {name[:50]!r} has {size} bytes: it must have at most {limits.LABEL_BYTES_MAX}"
    if len(names) > limits.LABEL_NAMES_MAX:
        return f"{len(names)} labels are changed at once: at most {limits.LABEL_NAMES_MAX}"
    return ""


def why_no_capacity(labels: Sequence[Label], before: int, in_all: int) -> str:
    """Return why a topic cannot have these labels, or "".

    Args:
        labels: its labels as they would be, removed ones included.
        before: bytes of its labels as they are.
        in_all: bytes of all labels of the cluster as they are.
    """
    present = sum(label.text is not None for label in labels)
    if present > limits.LABELS_MAX:
        return f"the topic would have {present} labels: at most {limits.LABELS_MAX} are allowed; remove some"
    if len(labels) > limits.LABEL_NAMES_MAX:
        return (
            f"the topic would have had {len(labels)} names of labels, removed ones included, which are kept as long "
            f"as the topic: at most {limits.LABEL_NAMES_MAX} are allowed; take the name of a removed one"
        )
    size = in_all - before + size_of(labels)
    if size > max(in_all, limits.LABELS_IN_ALL_BYTES_MAX):
        return (
            f"the labels of this cluster would have {size} bytes: at most {limits.LABELS_IN_ALL_BYTES_MAX} are "
            "allowed; shorten or remove some"
        )
    return ""
