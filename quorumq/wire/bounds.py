"""Bounds of the fields of messages and records. If a value is beyond them, the decoder refuses it."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Final

from quorumq.core import messages
from quorumq.core.messages import records
from quorumq.core.values import limits
from quorumq.core.values.types import MEMBERS_MAX, NODES_MAX
from quorumq.wire import batch as batches

NODE_CHARS_MAX: Final = batches.NODE_CHARS_MAX
NAME_CHARS_MAX: Final = limits.NAME_BYTES_MAX + len("!dead")
"""Names of topics and groups, and names derived from them. In characters, which core/ counts in bytes."""
TEXT_CHARS_MAX: Final = 2 * limits.DEATH_TEXT_MAX
ITEMS_MAX: Final = 1 << 17
"""Items of a list in a reply or between nodes. One request's spans may be split in a reply, so this is looser
than `SPANS_PER_REQUEST_MAX`, which binds requests of clients."""
RECORD_ITEMS_MAX: Final = 1 << 22
"""Items of a list directly in a journal record. The size of the record, which is checked before, bounds them too."""
SIGNED_BYTES_MAX: Final = 1024
PACKED_BYTES_MAX: Final = limits.HEADER_BYTES_MAX // 2
"""Packed registers of deleted names in one message."""

_NODE_FIELDS: Final = frozenset(
    {"node", "sender", "source", "to", "replicas", "before", "sources", "learners", "survivors"}
)
_NAME_FIELDS: Final = frozenset({
    "name", "group", "topic", "topics", "cluster_id", "which", "reason", "state", "outcome",
    "code", "error", "refused", "software", "start", "waiting", "on_behalf",
})  # fmt: skip
_ASKED: Final = frozenset(
    cls.__name__ for cls in typing.get_args(messages.ClientRequest)
) | {"ReceiptPart"}  # fmt: skip
_RECORDS: Final = frozenset(cls.__name__ for cls in typing.get_args(records.JournalRecord))

_SENTENCES: Final = frozenset({("TrustLost", "reason")})
"""Fields that have a sentence, with the path of a file in it. In other types a field of that name has a name."""

_LIST_LIMITS: Final[Mapping[tuple[str, str], int]] = {
    ("Store", "more"): limits.STORE_BATCHES_MAX,
    ("LabelsRequest", "changes"): limits.LABEL_NAMES_MAX,
    ("Topic", "replicas"): limits.PARTITIONS_MAX,
    ("Layout", "placements"): limits.PARTITIONS_MAX,
    ("Hello", "layouts"): limits.LAYOUT_MARKS_MAX,
    ("ClusterLayout", "members"): MEMBERS_MAX,
    ("ClusterLayout", "slots"): NODES_MAX,
    ("ClusterLayout", "before"): NODES_MAX,
    ("Topic", "over"): NODES_MAX,
    ("Topic", "backoff"): limits.BACKOFF_STEPS_MAX,
    ("CreateTopic", "backoff"): limits.BACKOFF_STEPS_MAX,
    ("AlterTopic", "backoff"): limits.BACKOFF_STEPS_MAX,
}
_BYTES_LIMITS: Final[Mapping[tuple[str, str], int]] = {
    ("SyncDigests", "sums"): limits.DIGEST_BYTES * limits.DIGESTS_MAX,
    ("SyncRegisters", "sums"): limits.DIGEST_BYTES * limits.REGISTER_BUCKETS,
    ("SyncRegisters", "key_number"): 8,
    **{(kind, "packed"): PACKED_BYTES_MAX for kind in ("SyncTopics", "RegistersReply", "PutTopic")},
    ("DeletedNoted", "packed"): limits.DELETED_BYTES * limits.DELETED_NAMES_MAX,
    ("DeletedPage", "packed"): limits.DELETED_BYTES * limits.DELETED_NAMES_MAX,
    ("DeletedPage", "total"): limits.DIGEST_BYTES,
    ("DeletedPage", "key_number"): 8,
}
BYTES_EXACT: Final[Mapping[tuple[str, str], int]] = {
    ("PartitionId", "topic"): batches.TOPIC_ID_BYTES,
    ("Topic", "id"): batches.TOPIC_ID_BYTES,
    ("Layout", "topic"): batches.TOPIC_ID_BYTES,
    ("LayoutMark", "topic"): batches.TOPIC_ID_BYTES,
    ("LayoutMark", "digest"): limits.DIGEST_BYTES,
    ("DeleteTopic", "id"): batches.TOPIC_ID_BYTES,
    ("SetGroup", "id"): batches.TOPIC_ID_BYTES,
    ("DeleteGroup", "id"): batches.TOPIC_ID_BYTES,
    ("PauseGroup", "id"): batches.TOPIC_ID_BYTES,
    ("LimitGroup", "id"): batches.TOPIC_ID_BYTES,
    ("PurgeRequest", "id"): batches.TOPIC_ID_BYTES,
    ("TopicSeen", "id"): batches.TOPIC_ID_BYTES,
    ("LabelsRequest", "id"): batches.TOPIC_ID_BYTES,
    ("MovePartition", "id"): batches.TOPIC_ID_BYTES,
    ("Group", "topic"): batches.TOPIC_ID_BYTES,
    ("LabelsReply", "topic"): batches.TOPIC_ID_BYTES,
    ("Digest", "digest"): limits.DIGEST_BYTES,
}
EPOCH_REPLIES: Final = ("PutReply", "ProposalReply", "RegistersReply")
"""Answers about registers. Their epoch is -1 if the voter's slot is new: they count in none."""
_INT_RANGES: Final[Mapping[tuple[str, str], tuple[int, int]]] = {
    ("Span", "start"): (0, limits.NUMBERS_END),
    ("Span", "stop"): (1, limits.NUMBERS_END + 1),
    ("Incarnation", "n"): (0, limits.STARTS_MAX),
    ("GroupsRequest", "number"): (0, limits.WORDS_END),  # a round
    ("GroupsReply", "number"): (0, limits.WORDS_END),
    ("PartitionId", "number"): (0, limits.PARTITIONS_MAX),
    **{(kind, "epoch"): (-1, limits.NUMBERS_END) for kind in EPOCH_REPLIES},
    ("FindName", "window_s"): (limits.NAME_WINDOW_MIN_S, limits.NAME_WINDOW_MAX_S + 1),
    ("FindName", "slot"): (0, limits.NAME_SLOTS),
    **{(kind, "page"): (0, limits.REGISTER_BUCKETS) for kind in ("RegistersReply", "DeletedPage")},
    ("RegistersRequest", "page"): (0, limits.REGISTER_BUCKETS + 1),
    ("FindName", "seq"): (0, limits.NAME_NUMBERS),
    ("Publish", "age_ms"): (-limits.AGES_ASKED_END, limits.AGES_ASKED_END),
    ("SourceReply", "lacking"): (-1, limits.NUMBERS_END),  # -1: it does not know
    ("SyncDigests", "locations"): (1, 1 << 4 * limits.DIGEST_DIGITS),
    ("SyncListed", "locations"): (1, 1 << 4 * limits.DIGEST_DIGITS + 1),
}
_INT_ENDS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("stamp", "time", "min_ballot", "ballot"), limits.STAMPS_END),
    **dict.fromkeys(("position_by",), limits.STARTS_MAX),
    **dict.fromkeys(("round", "nonce", "directory", "location"), limits.WORDS_END),
}
"""Fields with one limit in every type; all others end at `NUMBERS_END`."""
CHECKS: Final[Mapping[str, tuple[str, str, str]]] = {
    # type: (a condition of its fields, each named v_…, the field to name, the rule in words)
    "Span": ("v_start < v_stop", "stop", "a span is never empty: stop must be above start"),
    "Record": (
        "(v_kind != 4 or not v_n) and (v_death is None or v_kind == 2)",
        "kind",
        "ACKED is at n = 0, and only DEAD has a death",
    ),
    "SyncDigests": (
        f"len(v_sums) == {limits.DIGEST_BYTES} * ({limits.DIGEST_BRANCHES} * len(v_locations) or 1)",
        "sums",
        "a sum for each part of each place, or that of the root",
    ),
    "SyncRegisters": (
        f"len(v_sums) in ({limits.DIGEST_BYTES}, {limits.DIGEST_BYTES * limits.REGISTER_BUCKETS})",
        "sums",
        "the sum of all registers, or one for each bucket",
    ),
    "Limit": (
        f"0 <= v_per_second <= {limits.RATE_MAX} and bool(v_per_second) == bool(v_burst)",
        "per_second",
        f"0 for no limit, else up to {limits.RATE_MAX}, and then a burst",
    ),
    **dict.fromkeys(
        ("SyncTopics", "RegistersReply", "PutTopic", "DeletedNoted", "DeletedPage"),
        (
            f"len(v_packed) % {limits.DELETED_BYTES} == 0",
            "packed",
            f"{limits.DELETED_BYTES} bytes for each register",
        ),
    ),
    "Instance": ("len(v_topic) in (0, 16)", "topic", "the id of a topic, or empty"),
    "Decision": (
        "(v_topic is None) + (v_group is None) + (v_layout is None) + (v_cluster is None) >= 3",
        "group",
        "a topic, a group, or a layout of either kind, not two of them",
    ),
    "Accept": (
        "(v_topic is None) + (v_group is None) + (v_layout is None) + (v_cluster is None) == 3",
        "group",
        "a topic, a group, or a layout of either kind",
    ),
    "ClusterLayout": (
        "1 <= v_voters <= len(v_members) and len(v_before) <= len(v_slots) <= len(v_members)",
        "voters",
        "one at least, all of them members, as the slots of voters are, which never become fewer",
    ),
    "Hello": ("v_versions[0] <= v_versions[1]", "versions", "lowest and highest version, in that order"),
}


def int_range(owner: str, field: str) -> tuple[int, int]:
    """Return the range of an integer field: from the first on, below the second."""
    known = _INT_RANGES.get((owner, field))
    if known is not None:
        return known
    if field == "age_ms":
        return -limits.AGES_END, limits.AGES_END
    if field.endswith("_ms") or field == "cursor":
        return -(1 << 63), 1 << 63  # times of day may lie before 1970 if a clock is wrong
    return 0, _INT_ENDS.get(field, limits.NUMBERS_END)


def bytes_max(owner: str, field: str) -> int:
    return _BYTES_LIMITS.get((owner, field), SIGNED_BYTES_MAX)


def chars_max(owner: str, field: str) -> int:
    if field in _NODE_FIELDS:
        return NODE_CHARS_MAX
    is_name = field in _NAME_FIELDS and (owner, field) not in _SENTENCES
    return NAME_CHARS_MAX if is_name else TEXT_CHARS_MAX


def items_max(owner: str, field: str) -> int:
    known = _LIST_LIMITS.get((owner, field))
    if known is not None:
        return known
    if owner in _RECORDS:
        return RECORD_ITEMS_MAX
    return limits.SPANS_PER_REQUEST_MAX if owner in _ASKED else ITEMS_MAX
