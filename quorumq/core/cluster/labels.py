"""Labels of topics: small texts by name. Each goes to its last writer.

They travel as their own kind: nodes compare a digest of all of them, then those of topics, and send the differing ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from sortedcontainers import SortedDict

from quorumq.core.messages import LabelChange, LabelsDigest
from quorumq.core.values import limits
from quorumq.core.values.limits import DIGEST_BYTES
from quorumq.core.values.types import Label, Labels

SENT_BYTES_MAX = limits.MIB
"""Bytes of labels, about, that one comparison sends. The rest is sent after the next comparisons."""


def merge_labels(ours: Sequence[Label], theirs: Iterable[Label]) -> tuple[Label, ...]:
    """Return the later one of each name, by name.

    Why: two of one stamp are one write; the text decides all the same, so that the order of arrival never does.
    """
    merged = {label.name: label for label in ours}
    for label in theirs:
        known = merged.get(label.name)
        if known is None or (label.stamp, label.text or "") > (known.stamp, known.text or ""):
            merged[label.name] = label
    return tuple(sorted(merged.values()))


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


class LabelTable:
    """Labels that one node knows, by topic id; each by name, removed ones included."""

    __slots__ = ("_digest", "_digests", "size", "topics")

    def __init__(self) -> None:
        self.topics: SortedDict[bytes, tuple[Label, ...]] = SortedDict()
        self.size = 0  # bytes of names and texts
        self._digests: dict[bytes, bytes] = {}
        self._digest = b""

    def of(self, topic: bytes) -> tuple[Label, ...]:
        """Return the labels of a topic by name, removed ones included."""
        labels: tuple[Label, ...] = self.topics.get(topic, ())
        return labels

    def take(self, theirs: Labels) -> tuple[Label, ...]:
        """Merge labels of a known topic, and return those that changed."""
        ours = self.of(theirs.topic)
        merged = merge_labels(ours, theirs.labels)
        if merged == ours:
            return ()
        self.size += size_of(merged) - size_of(ours)
        self.topics[theirs.topic] = merged
        self._changed(theirs.topic)
        known = dict.fromkeys(ours)
        return tuple(label for label in merged if label not in known)

    def drop(self, topic: bytes) -> None:
        self.size -= size_of(self.topics.pop(topic, ()))
        self._changed(topic)

    def _changed(self, topic: bytes) -> None:
        self._digests.pop(topic, None)
        self._digest = b""

    def registers(self) -> list[Labels]:
        return [Labels(topic, labels) for topic, labels in self.topics.items()]

    # ----------------------------------------------------------------- comparing

    def digest(self) -> bytes:
        """Return the digest of all labels; empty without any."""
        if self.topics and not self._digest:
            content = b"".join([part.topic + part.digest for part in self.digests()])
            self._digest = hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()
        return self._digest

    def digests(self) -> tuple[LabelsDigest, ...]:
        """Return the digests of the topics that have labels."""
        for topic, labels in self.topics.items():
            if topic not in self._digests:
                self._digests[topic] = _digest_of(labels)
        return tuple(LabelsDigest(topic, self._digests[topic]) for topic in self.topics)

    def differing(self, theirs: Iterable[LabelsDigest]) -> list[Labels]:
        """Return the labels of topics for which a peer has others, or none, as far as one comparison sends them."""
        known = {part.topic: part.digest for part in theirs}
        chosen: list[Labels] = []
        remaining = SENT_BYTES_MAX
        for topic, digest in self.digests():
            if known.get(topic) != digest and remaining > 0:
                chosen.append(Labels(topic, self.of(topic)))
                remaining -= size_of(self.of(topic))
        return chosen

    def check(self) -> None:
        assert self.size == sum(map(size_of, self.topics.values())), "the count of bytes is wrong"
        for topic, labels in self.topics.items():
            names = [label.name for label in labels]
            assert names == sorted(dict.fromkeys(names)), f"{topic.hex()} has labels out of order"
            assert self._digests.get(topic, _digest_of(labels)) == _digest_of(labels), "an old digest"


def _digest_of(labels: Iterable[Label]) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name, text, stamp in labels:
        for part in (name, text or "", str(stamp), "" if text is None else "there"):
            raw = part.encode()
            digest.update(len(raw).to_bytes(4, "big") + raw)
    return digest.digest()
