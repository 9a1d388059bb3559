"""Limits of the protocol: each is named, with its unit and its relation to the others.

docs/protocol.md, section 5, lists the defaults that callers meet.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

FRAME_BYTES_MAX = 16 * MIB
"""One frame on the wire, header and body together."""

HEADER_BYTES_MAX = 4 * MIB
"""The CBOR header of a frame."""

CLIENT_HEADER_BYTES_MAX = 768 * KIB
"""Header of a client's request: the larger header that peers get has to fit `HEADER_BYTES_MAX`. The largest useful one
has 65,536 messages, or 1,000 receipts: some 600 KiB."""

CLIENT_HEADER_ITEMS_MAX = 49_152
"""Items of CBOR in one that is long, as reading each takes some 100 ns. A thousand
dead letters have 32,000, a thousand receipts 11,000."""

PAYLOAD_BYTES_MAX = 1 * MIB
"""The payload of one message."""

MESSAGE_BYTES_MAX = PAYLOAD_BYTES_MAX + 64 * KIB
"""Key, headers and payload of one message, encoded."""

BATCH_BYTES_MAX = 4 * MIB
"""The body of one batch."""

BATCH_MESSAGES_MAX = 65_536
"""Messages in one batch."""

PACKED_ABOVE = 128
"""Batches of one message that a partition keeps as objects, the newest: of more the older half are rows of numbers."""

STORE_BATCHES_MAX = 256
"""Batches that one STORE joins."""
STORE_BYTES_MAX = 1 * MIB
"""Bytes of these batches, headers included; a batch that is larger goes alone."""

FETCH_BYTES_MAX = 8 * MIB
"""Messages and bytes that one FETCH answers at most, also if it asks for more."""

FETCH_MESSAGES_MAX = 65_536

SPANS_PER_REQUEST_MAX = 10_000
"""Items of any list in one request, and between nodes."""

SPANS_SETTLED_MAX = 1_000
"""Spans that one request of a client settles. They are voted on in steps of `RUNS_PER_STEP`."""

FETCH_NAMED_MAX = 1_000
"""Messages that a FETCH may name."""

RATE_MIN, RATE_MAX = 0.001, 1_000_000
"""Deliveries a second to which a group may be limited; the latter for its burst, too."""

PEEK_ITEMS_MAX = 256
"""Runs of messages in one page of a PEEK."""

RUNS_PER_STEP = 128
"""Runs of messages, about, that one step votes on: no other client is served meanwhile. More runs take more steps."""

ROUND_RUNS = 3
"""Extra cost of beginning and ending a round, in runs."""

CHEAP = 16
"""Highest cost of a request that waits for no turn, in things looked at (core/requests/costs.py)."""
COSTLY_PER_STEP = 1024
"""Cost of other requests at which a step begins no further one: some 2 ms."""
COSTLY_PAUSE_S = 0.005
"""Seconds from the end of one such share to the next, at least."""
COSTLY_REST = 3.0
"""Pause as a multiple of its step's time, at least, so that three quarters of the time are for all others."""
COSTLY_REST_MAX_S = 0.25
"""Seconds of that pause at most, as the process may have been stopped meanwhile, or swapped out."""
WOKEN_PER_STEP = 8
"""Parked requests of one client that one step wakes, some 1 ms; the others wait for a turn of their client."""
WAKING_COST = 64
"""Cost of waking one, in things looked at."""
LEFT_OVER_MAX = 32
"""Chunks of left-over work up to which each has a pause before it; with more, a pause lasts as long as one took."""
COSTLY_WAIT_S = 0.02
"""Seconds for which work that waits for its turn lets steps with new events go first."""

MEANT_MAX = 1000
"""Known names that an unknown one is compared with to ask what was meant; each takes some microseconds."""
NAMES_PER_REQUEST_MAX = 1_000
"""Topics that one METADATA or FETCH names."""
PATTERNS_PER_REQUEST_MAX = 10
"""Patterns among them: each is compared with the name of every topic."""

INFLIGHT_REQUESTS_MAX = 256
"""Requests of one client connection that a node works on at once; the next waits unread."""

SESSION_IDLE_S = 86_400.0
"""Seconds after which a producer's session is closed, once everything of it is reclaimed."""

RECLAIM_BATCHES_MAX = 4096
"""Batches of a partition that one sweep of RECLAIM looks at, or drops."""

RECLAIMED_PER_STEP = 512
"""Runs of messages, each once for each group, that one step of RECLAIM looks at or drops: some 5 ms."""

REFRESHED_PER_STEP = 512
"""Sections of a new batch, times groups, that one step adds to the groups."""
LOOKS_PER_STEP = 512
"""Runs of messages, and batches, that one step looks at for groups that begin or are rewound: some 5 ms."""
COMPARED_PER_STEP = 2048
"""Things that one step looks at for anti-entropy: groups with digests to sum up, parts of trees, producer ids: some 3
ms."""
GROUPS_MADE_PER_STEP = 40
"""Topics in which one FETCH registers a new group at a time."""
COUNTED_TEXT_MAX = 200
"""Characters of an error's text in a count of dead letters."""
PEEK_SCAN_MAX = 1024
"""Batches, or runs, that one page of a PEEK looks at before it ends with its finds."""

LISTED_PER_STEP = 4096
"""Producer ids that one step puts in order for a listing: some 10 ms."""

BEGIN_RUNS_MAX = 512
"""Runs that one page of a group that begins skips if the group has no record of their sessions: that is quick."""

REPLICA_LIST_SCAN_MAX = 192
"""Runs that one page of a listing looks at: the result is then written in one step."""

GROUPS_PER_CHUNK = 2000
"""Registers of groups in one message."""

NAME_WINDOWS = tuple(
    length * unit
    for unit, lengths in (
        (60, (1, 2, 5, 10, 15, 30)),
        (3600, (1, 2, 3, 6, 12)),
        (86_400, (1, 2, 3, 7, 14, 30, 60, 90, 180, 366)),
    )
    for length in lengths
)
"""Seconds for which the name of a message may be kept, if it is not kept as long as the topic. They are few, because
each of them leaves its closed windows behind for good."""
NAME_WINDOW_MIN_S = NAME_WINDOWS[0]
NAME_WINDOW_MAX_S = NAME_WINDOWS[-1]
NAME_SLOTS = 4096
"""Producer ids of one window of names, at most. All runs of a producer id are compared as one, and each name is a run:
of a partition's 250,000 names a slot has about 60."""
NAME_WINDOW_SLOTS = ((0, NAME_SLOTS), (86_400, NAME_SLOTS), (3600, 256), (60, 16))
"""Shortest window with each number of slots; 0 stands for the topic's life. Short windows have few names and fewer
slots, because each slot of each window has to be closed."""
NAMES_PER_PARTITION_MAX = 250_000
"""Names that a partition keeps: each is a run of messages, here and in each group. No more are taken."""
NAMES_PER_TOPIC_MAX = 1_000_000
"""Names in all of a topic's partitions that one node has, each once for each partition: no more are taken."""
NAME_NUMBERS = 1 << 61
"""Sequence numbers of one of them."""
HOLD_TIME_MIN_S = 0.1
HOLD_TIME_DEFAULT_S = 30.0
HOLD_TIME_MAX_DEFAULT_S = 60.0
CLAIM_MAX_S = 7 * 86400.0
"""Seconds for which a delivered message may be claimed by EXTEND, beyond any hold."""
MAX_DELIVERIES_DEFAULT = 5
LONG_POLL_MAX_S = 20.0
REQUEST_TIMEOUT_S = 5.0
SHOWN_GROUPS_MAX = 1000
"""Groups of a topic in the answer to `quorumq show`, dead-letter groups included."""

DESCRIBED_MAX = 500
"""Partitions of all groups that one DescribeGroups names; one group alone may have more."""
STATUS_ROWS_MAX = 500
"""Partitions, and groups in them, in one answer to STATUS: some 5 ms. The client asks again for the rest."""

PARTITIONS_MAX = 1024
TOPICS_MAX = 4000
"""Topics of a cluster. The node that makes something checks this and the next six. Simultaneous creations through
several nodes may exceed them by a few, and all nodes take those in."""
DELETED_NAMES_MAX = 4_000_000
"""Deleted names of topics, which are kept for good, and of groups, which are kept as long as their topic."""
DELETED_BYTES = 52
"""A register of a deleted name that is packed."""
DELETED_UNPACKED_MAX = 2048
"""Deleted names whose registers a node keeps as they were, the last ones: each takes some 520 bytes in memory, and
10 µs at the head of each journal segment. Older ones are packed."""
REPLACED_TOPICS_MAX = 1000
"""Deleted topics that a node remembers though another one has their name, so that late requests hear `not-found`."""
PARTITIONS_IN_ALL_MAX = 10_000
"""Partitions of all topics together."""
GROUPS_PER_TOPIC_MAX = 1000
GROUPS_MAX = 100_000
"""Groups of all topics."""
GROUP_PARTITIONS_MAX = 50_000
"""Groups of all topics, each once for each partition: a node takes some 5 KiB for each."""
SESSIONS_PER_PARTITION_MAX = 250_000
"""Sessions with messages in a partition, some still to be delivered: no more are begun."""
PRODUCER_IDS_PER_TOPIC_MAX = 1_000_000
"""Sessions in all of a topic's partitions that one node has, each once for each partition: no more are begun."""
FETCH_PARTITIONS_MAX = PARTITIONS_MAX
"""Partitions that one FETCH looks at. A pattern may match more: each FETCH takes the next ones."""

LABELS_MAX = 64
"""Labels of a topic."""
LABEL_NAMES_MAX = 256
"""Names of a topic's labels, those of removed ones included: a name is kept as long as the topic."""
LABEL_BYTES_MAX = 1 * KIB
"""One label, in UTF-8."""
LABELS_IN_ALL_BYTES_MAX = 16 * MIB
"""Names and texts of all labels of a cluster, in UTF-8. The node that changes some checks this, as with topics."""

TOPIC_TIME_MAX_S = 10 * 366 * 86400.0
"""A topic's retention and TTL."""
DELAY_MAX_S = 366 * 86400.0
"""Seconds by which a message may be published ahead, and by which a REJECT may put one off."""
TOPIC_BACKOFF_S = -1.0
"""The delay of a REJECT that leaves it to the topic's backoff list."""
INTERRUPTIONS_MAX = 10
"""Deliveries of one message to one group that clean stops of the consumer may end before they cost attempts."""
BACKOFF_STEPS_MAX = 32
BACKOFF_MAX_S = 7 * 86400.0
"""One entry of a topic's backoff list."""
NAME_BYTES_MAX = 200
DEATH_TEXT_MAX = 8 * KIB
"""Characters of a dead letter's message or stack; longer ones are cut in the middle."""
DEATH_BYTES_MAX = 96 * KIB
"""All texts of a dead letter, in UTF-8."""
DEATH_BARE_MAX = 128
"""Characters of class and fingerprint in a dead letter that is made when the disk has only its reserve left."""
DEATHS_BYTES_MAX = 1 * MIB
"""Bytes that nodes may have to send each other for one REJECT's death: its size, once for each span."""
DEATHS_PER_CHUNK = 32
"""Records with deaths in one message, or in one record of the journal."""

NUMBERS_END = 1 << 62
"""End of all numbers that nodes or clients count with: sequence numbers, sessions, redrives, attempts, positions.

This and the next are absolute. They are not relative to a time of day, because a node whose clock was a year ahead has
to serve again once it is right. They are not relative to known numbers, because a node that was cut off for long has
grown meanwhile, and an emptied one begins far above the others' numbers. A number beyond them is refused on arrival,
and when it would grow.
"""
STAMPS_END = 1 << 58
"""End of stamps' times: none reaches this, which is in the year 2109."""
STAMP_LAST = STAMPS_END - (1 << 16)
"""The highest reserve: reserves are whole milliseconds."""
CLOCK_END = STAMPS_END - (366 * 86_400_000 << 16)
"""First time of day that makes no stamps, because no correct clock shows it: stamps count on without it. The stamps
left above last longer than it takes to set the other clocks right."""
WORDS_END = 1 << 64
"""Random numbers, digests and round numbers have 64 bits."""
DIGEST_BYTES = 16
"""A digest in anti-entropy, a sum of them, and their key."""
LAYOUT_MARKS_MAX = 256
"""Layouts that one HELLO names."""
DIGESTS_MAX = 4000
"""Digests, or sums, in one message of anti-entropy."""
REGISTER_BUCKETS = 256
"""Buckets of registers, each with a sum of digests, and pages of packed ones."""
DELETED_PAGES_TOLD = 8
"""Buckets whose packed registers one comparison sends."""
DIGEST_BRANCHES = 16
"""Parts of a node in the tree of digests."""
DIGEST_DIGITS = 15
"""Hexadecimal digits that name a node of the tree: 60 bits."""
AGES_END = 1 << 62
"""End of ages in milliseconds: no batch is that old."""
AGES_ASKED_END = 1 << 61
"""End of ages in milliseconds when the producer publishes the batch: it ages on the way."""

STARTS_FAR = 65_536
"""Size of the blocks of start counts: a node id must have fewer starts than that between two resyncs."""
STARTS_MAX = 1 << 32
"""End of start counts: round numbers are 64 bits, and begin with the start count."""

CLOCK_RATE_MAX = 0.01
"""Share by which a clock's rate may differ from real time (promise G2)."""

DEADLINE_SHARE = 0.98
"""A coordinator's and a client's deadline, as a share of the hold time counted from before the send."""

QUARANTINE_SHARE = 1.02
"""Time from a start until a replica votes again, as a multiple of hold_time_max."""

# In real time, a coordinator whose clock is slow believes in its hold for share / (1 - rate); a replica whose
# clock is fast keeps the grant for 1 / (1 + rate). The first must end before the second (promise G2), and
# before the end of a quarantine that a fast clock cuts short.
assert DEADLINE_SHARE / (1 - CLOCK_RATE_MAX) < 1 / (1 + CLOCK_RATE_MAX)
assert DEADLINE_SHARE / (1 - CLOCK_RATE_MAX) < QUARANTINE_SHARE / (1 + CLOCK_RATE_MAX)
assert CLOCK_END < STAMP_LAST < STAMPS_END
assert MESSAGE_BYTES_MAX <= BATCH_BYTES_MAX < FETCH_BYTES_MAX < FRAME_BYTES_MAX
assert HEADER_BYTES_MAX + FETCH_BYTES_MAX < FRAME_BYTES_MAX
assert DEATHS_PER_CHUNK * DEATH_BYTES_MAX < HEADER_BYTES_MAX
