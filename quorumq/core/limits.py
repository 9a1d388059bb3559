"""Every limit of the protocol: named, with its unit, and how it relates to the others.

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
"""That of a request of a client: what it grows into for peers has to fit `HEADER_BYTES_MAX`. The largest that is of use
has 65,536 messages, or 1,000 receipts: some 600 KiB."""

CLIENT_HEADER_ITEMS_MAX = 49_152
"""Items of CBOR in one that is long, as reading each takes some 100 ns. A thousand
dead letters have 32,000, a thousand receipts 11,000."""

MESSAGE_BYTES_MAX = 1 * MIB
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
"""And their bytes, headers included; a batch that is larger goes alone."""

FETCH_BYTES_MAX = 8 * MIB
"""What one FETCH answers at most, whatever it asks for."""

FETCH_MESSAGES_MAX = 65_536

SPANS_PER_REQUEST_MAX = 10_000
"""Items of any list in one request, and between nodes."""

SPANS_SETTLED_MAX = 1_000
"""Spans that one request of a client settles. They are voted on in steps of `RUNS_PER_STEP`."""

FETCH_NAMED_MAX = 1_000
"""Messages that a FETCH may name."""

PEEK_ITEMS_MAX = 256
"""Runs of messages in one page of a PEEK."""

RUNS_PER_STEP = 128
"""Runs of messages that one step votes on, about: nobody else is served meanwhile. What is more has more steps."""

ROUND_RUNS = 3
"""What it costs beside them to begin a round and to end it, in runs."""

CHEAP = 16
"""What a request may cost that waits for no turn, in things looked at (core/costs.py)."""
COSTLY_PER_STEP = 1024
"""What one step serves of the others, and it begins one: some 2 ms."""
COSTLY_PAUSE_S = 0.005
"""From the end of one such share to the next, at least."""
COSTLY_REST = 3.0
"""… or so many times as long as its step took, so that three quarters of the time are for all others."""
COSTLY_REST_MAX_S = 0.25
"""… and at most this, as the process may have been stopped meanwhile, or swapped out."""
WOKEN_PER_STEP = 8
"""Parked requests of one client that one step wakes, some 1 ms; the others wait for a turn of their client."""
WAKING_COST = 64
"""What it costs to wake one, in things looked at."""
BEHIND_MAX = 32
"""Of so much that earlier steps had no time for each piece has a pause before it; of more only as long as one took."""
COSTLY_WAIT_S = 0.02
"""For so long what waits for its turn lets steps go first in which something came."""

MEANT_MAX = 1000
"""Names that one is compared with to ask what was meant, which takes some microseconds each."""
NAMES_PER_REQUEST_MAX = 1_000
"""Topics that one METADATA or FETCH names."""
PATTERNS_PER_REQUEST_MAX = 10
"""Of them, patterns: each is compared with the name of every topic."""

INFLIGHT_REQUESTS_MAX = 256
"""Requests of one client connection that a node works on at once; the next waits unread."""

ORIGIN_IDLE_S = 86_400.0
"""A producer's session of which everything was reclaimed this long ago is closed."""

RECLAIM_BATCHES_MAX = 4096
"""Batches of a partition that one sweep of RECLAIM looks at, or drops."""

RECLAIMED_PER_STEP = 2048
"""Runs of messages, each once for each group, that one step of RECLAIM looks at or drops: some 5 ms."""

REFRESHED_PER_STEP = 512
"""Sections of a new batch, times groups, that one step offers to the groups."""
LOOKS_PER_STEP = 512
"""Runs of messages, and batches, that one step looks at for groups that begin or are rewound: some 5 ms."""
COMPARED_PER_STEP = 2048
"""What one step looks at for anti-entropy: groups whose digests are summed up, parts of trees, origins: some 3 ms."""
GROUPS_MADE_PER_STEP = 40
"""Topics in which one FETCH registers a new group at a time."""
PEEK_SCAN_MAX = 1024
"""Batches, or runs, that one page of a PEEK looks at before it ends with what it has."""

BEGIN_RUNS_MAX = 512
"""Runs that one page of a group that begins skips, where the group has no record of their sessions: that is quick."""

SURVEY_SCAN_MAX = 192
"""Likewise, one page of a survey: what is found is then written in one step."""

GROUPS_PER_PIECE = 2000
"""Registers of groups in one message."""

HOLD_TIME_MIN_S = 0.1
HOLD_TIME_DEFAULT_S = 30.0
HOLD_TIME_MAX_DEFAULT_S = 60.0
MAX_DELIVERIES_DEFAULT = 5
LONG_POLL_MAX_S = 20.0
REQUEST_TIMEOUT_S = 5.0
SHOWN_GROUPS_MAX = 1000
"""Groups of a topic that the answer to `quorumq show` tells of, dead-letter groups included."""

STATUS_ROWS_MAX = 500
"""Partitions, and groups in them, that one answer to STATUS tells of: some 5 ms. Whoever asks goes on from there."""

PARTITIONS_MAX = 1024
TOPICS_MAX = 4000
"""Topics of a cluster. This and the next six are looked at where something is made, by the node that is asked for it:
what is made at once through several nodes may pass them by a few, and is taken in by all."""
TOPIC_NAMES_MAX = 20_000
"""Names of topics, those of deleted ones included: of each name a register is kept for good."""
PARTITIONS_IN_ALL_MAX = 10_000
"""Partitions of all topics together."""
GROUPS_PER_TOPIC_MAX = 1000
GROUP_NAMES_MAX = 50_000
"""Groups of all topics, deleted ones included, until their topic is deleted."""
GROUP_PARTITIONS_MAX = 50_000
"""Groups of all topics, each once for each partition: a node takes some 5 KiB for each."""
SESSIONS_PER_PARTITION_MAX = 250_000
"""Sessions of which a partition has messages, and of which some are to be delivered: no more are begun."""
ORIGINS_PER_TOPIC_MAX = 1_000_000
"""Likewise, those of all of a topic's partitions that one node has, each once for each partition."""
FETCH_PARTITIONS_MAX = PARTITIONS_MAX
"""Partitions that one FETCH looks at; of more, as a pattern may match, each FETCH takes the next so many."""

TOPIC_TIME_MAX_S = 10 * 366 * 86400.0
"""A topic's retention and TTL."""
DELAY_MAX_S = 366 * 86400.0
"""How far ahead a message may be published, and how far a REJECT may put one off."""
TOPIC_BACKOFF_S = -1.0
"""The delay of a REJECT that leaves it to the topic's backoff list."""
INTERRUPTIONS_MAX = 10
"""How many deliveries of one message to one group a clean stop of the consumer may end before they cost attempts."""
BACKOFF_STEPS_MAX = 32
BACKOFF_MAX_S = 7 * 86400.0
"""One entry of a topic's backoff list."""
NAME_BYTES_MAX = 200
LETTER_TEXT_MAX = 8 * KIB
"""Characters of a dead letter's message or stack; longer ones are cut in the middle."""
LETTER_BYTES_MAX = 96 * KIB
"""All texts of a dead letter, in UTF-8."""
LETTER_BARE_MAX = 128
"""Characters of class and fingerprint in a dead letter that comes where the disk has only its reserve left."""
LETTERS_BYTES_MAX = 1 * MIB
"""What nodes may have to tell each other of one REJECT's letter: that, once for each span."""
LETTERS_PER_PIECE = 32
"""Records with letters in one message, or in one record of the journal."""

NUMBERS_END = 1 << 62
"""No number that nodes or clients count with reaches this: sequence numbers, sessions, redrives, attempts, positions.

This and the next are absolute: not relative to a time of day, as a node whose clock was a year ahead has to come back
once it is right; nor to what was seen, as a node that was cut off for long has grown meanwhile, and one that was
emptied begins far above what the others know. What is beyond them is refused where it comes in, and where it grows.
"""
STAMPS_END = 1 << 58
"""No stamp's time reaches this, which is in the year 2109."""
STAMP_LAST = STAMPS_END - (1 << 16)
"""The highest reserve: reserves are whole milliseconds."""
CLOCK_END = STAMPS_END - (366 * 86_400_000 << 16)
"""A time of day from here on, which no clock shows that is right, makes no stamps: these count on without it. What is
left above is enough for longer than the others need to be set right."""
WORDS_END = 1 << 64
"""Random numbers, digests and round numbers have 64 bits."""
DIGEST_BYTES = 16
"""A digest in anti-entropy, a sum of them, and their key."""
DIGEST_BRANCHES = 16
"""Parts of a node in the tree of digests."""
DIGEST_DIGITS = 15
"""Hexadecimal digits that name a node of the tree: 60 bits."""
AGES_END = 1 << 62
"""Milliseconds: no batch is that old."""
AGES_ASKED_END = 1 << 61
"""Nor as old as this when its producer publishes it: it ages on the way."""

STARTS_FAR = 65_536
"""Start counts come in blocks of this size: between two resyncs of a node id must be fewer starts than that."""
STARTS_MAX = 1 << 32
"""No start count reaches this: round numbers are 64 bits, and begin with it."""

CLOCK_RATE_MAX = 0.01
"""How far a clock's rate may be from real time (promise G2)."""

DEADLINE_SHARE = 0.98
"""A coordinator's and a client's deadline, as a share of the hold time counted from before the send."""

QUARANTINE_SHARE = 1.02
"""How many times hold_time_max a replica waits after a start before it votes again."""

# In real time, a coordinator whose clock is slow believes in its hold for share / (1 - rate); a replica whose
# clock is fast keeps the grant for 1 / (1 + rate). The first must end before the second (promise G2), and
# before the end of a quarantine that a fast clock cuts short.
assert DEADLINE_SHARE / (1 - CLOCK_RATE_MAX) < 1 / (1 + CLOCK_RATE_MAX)
assert DEADLINE_SHARE / (1 - CLOCK_RATE_MAX) < QUARANTINE_SHARE / (1 + CLOCK_RATE_MAX)
assert CLOCK_END < STAMP_LAST < STAMPS_END
assert MESSAGE_BYTES_MAX <= BATCH_BYTES_MAX < FETCH_BYTES_MAX < FRAME_BYTES_MAX
assert HEADER_BYTES_MAX + FETCH_BYTES_MAX < FRAME_BYTES_MAX
assert LETTERS_PER_PIECE * LETTER_BYTES_MAX < HEADER_BYTES_MAX
