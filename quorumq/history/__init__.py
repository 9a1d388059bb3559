"""History of events, one JSON object per line.

Nodes, clients and the simulator write the same history, so that one set of checkers, one diagram and one audit serve
all of them (docs/history.md).

A history promises that a line is complete or absent. Every line has its writer, its time, and the uncertainty of
that time. Messages are named by spans, never one by one, so a batch of 10,000 costs one line. A history does not
promise that two machines' clocks agree (each line carries its own uncertainty), or that nothing is missing after a
kill: a writer buffers.
"""

from quorumq.history.schema import COMMON, FIELDS, KINDS, VERSION, Field, HistoryError, KindOf, Row, check_row
from quorumq.history.values import (
    label_after,
    layout_values,
    owner_text,
    parse_owner,
    parse_producer_id,
    producer_id_text,
    register_value,
    settings_value,
    spans_value,
    token_text,
    topic_label,
)
from quorumq.history.writer import HistoryWriter, boot, mono_clock

__all__ = [
    "COMMON",
    "FIELDS",
    "KINDS",
    "VERSION",
    "Field",
    "HistoryError",
    "HistoryWriter",
    "KindOf",
    "Row",
    "boot",
    "check_row",
    "label_after",
    "mono_clock",
    "producer_id_text",
    "owner_text",
    "parse_producer_id",
    "parse_owner",
    "layout_values",
    "register_value",
    "settings_value",
    "spans_value",
    "token_text",
    "topic_label",
]
