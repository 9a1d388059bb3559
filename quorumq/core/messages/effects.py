"""Effects that the core asks its driver for, and events that the driver feeds back.

quorumq/driver.py carries effects out, for production, the explorer, the simulator and the tests alike. Its duties:

1. Effects of one step are carried out in order. `Persist` appends to the journal, in order.
2. `Persist.then` is carried out only once everything appended up to and including it is durable.
   This is "persist before send", and there is no other way to say it: an answer that needs the disk
   is inside a Persist. One fsync may serve many Persists (group commit).
3. A Persist with nothing in `then` needs no fsync of its own. One with no records waits for the records
   before it. If they are all durable already, `then` is carried out at once.
4. `Send` to the node itself becomes the event `Ours`. A Send to a peer that cannot be reached may be
   dropped: the protocol repeats what matters. If the write of an answer to a RemoteFetch was certainly never
   begun, the driver may say so (`Unposted`), so that the holds on its messages need not run out.
5. After a crash nothing of the old core object is used again. A new one is built from the journal.
"""

from __future__ import annotations

from typing import NamedTuple, Union

from quorumq.core.messages import ClientReply, ClientRequest, Envelope, PeerMessage, RemoteFetchReply
from quorumq.core.messages.diskroom import Shortage
from quorumq.core.messages.records import JournalRecord
from quorumq.core.values.fairqueue import Caller
from quorumq.core.values.types import Incarnation, NodeId

# ----------------------------------------------------------------------------- effects


class Send(NamedTuple):
    """Send ``message`` to node ``to`` over our link to it."""

    to: NodeId
    message: PeerMessage


class Reply(NamedTuple):
    """Answer client request ``key``. If the write is never begun, the driver says so with `Unsent`."""

    key: int
    reply: ClientReply


class Persist(NamedTuple):
    """Append ``records`` to the journal; carry out ``then`` once they are durable."""

    records: tuple[JournalRecord, ...]
    then: tuple[Send | Reply | Done, ...] = ()


class Done(NamedTuple):
    """Inside `Persist.then` only: feed `Durable(token)` back to the core."""

    token: int


class SendStored(NamedTuple):
    """Send stored batch number ``batch`` to ``to`` as a STORE of round 0 (anti-entropy); the driver reads it."""

    to: NodeId
    epoch: int
    batch: int
    age_ms: int  # age of the batch now; goes into the STORE


class DropBatches(NamedTuple):
    """Mark these stored batches as dropped: they are not needed here any more. The journal frees their bytes later.

    Why: no group needs them, their topic was deleted, their partition was moved away, or the journal has their content
    elsewhere (damaged batches whose messages are stored again; pages of deleted names that newer pages replace).

    It follows the Persist of the record that justifies it, and no later effect reads these batches. Once it is
    durable, a start replays none of them. A crash before that brings them back, so the record lists the batches that
    it voids (a replay gives all batches after all other records). No number of a batch is used twice in a directory:
    before its first step, the driver raises `NodeState.next_batch` above every number that was ever used.
    """

    numbers: tuple[int, ...]


class Stop(NamedTuple):
    """End this node, because a peer has the same node id: say why and exit."""

    reason: str


class Restart(NamedTuple):
    """Begin again in the same process: drop this core, and build another from the journal. Say why."""

    reason: str


class Raised(NamedTuple):
    """Report ``error``, raised before anything had changed. The request was refused, and the node goes on."""

    request: str  # the name of its type
    error: Exception


class Again(NamedTuple):
    """Take up client request ``key`` again. The core does that itself, when it has time: no driver sees this."""

    key: int
    request: ClientRequest
    looked: bool  # the other nodes were asked for the names that are not known here
    caller: Caller = 0


Effect = Union[Restart, Send, Reply, Persist, SendStored, DropBatches, Stop, Raised, Again]

# ------------------------------------------------------------------------------ events


class Received(NamedTuple):
    """Arrival of a peer's message."""

    envelope: Envelope


class Ours(NamedTuple):
    """Message of this node to itself, once it may be sent: mostly its own vote, which is durable now."""

    message: PeerMessage


class Request(NamedTuple):
    """Arrival of a client's request. ``key`` is unique within this start of the node; receipts are verified.

    ``caller`` is the same for all requests of one connection: costly requests are served one from each in turn. It is 0
    if a driver makes no difference.
    """

    key: int
    request: ClientRequest
    caller: Caller = 0


class Unsent(NamedTuple):
    """Notice that the write of reply ``key`` was certainly never begun: its holds may be given back (LEAVE)."""

    key: int


class Unposted(NamedTuple):
    """Notice that the write of a `Send` of ``message`` was certainly never begun: its holds may go back (LEAVE)."""

    message: RemoteFetchReply


class Gone(NamedTuple):
    """Notice that the client that asked ``key`` is gone; a parked FETCH is dropped."""

    key: int


class Durable(NamedTuple):
    """Notice that everything before `Done(token)` is durable; only written, if its Persist asks for no fsync.

    ``position`` counts all records ever appended to this data directory that are durable now, whichever start
    appended them. A later start that finds fewer has an older copy of the directory. 0 if a driver keeps no count.
    """

    token: int
    position: int = 0


class LinkUp(NamedTuple):
    """Notice that our link to ``peer`` is up and HELLO was accepted on both sides.

    ``seen`` are the last starts of our node id that the peer had durably seen before this HELLO. ``position`` is the
    last position of our directory that the peer received, from our start ``position_by``.
    """

    peer: NodeId
    incarnation: Incarnation
    stamp: int
    seen: tuple[Incarnation, ...]
    position: int = 0
    position_by: int = 0


class HelloRefused(NamedTuple):
    """Notice that ``peer`` answered our HELLO with this error."""

    peer: NodeId
    code: str
    detail: str
    # "superseded": the highest start count that the peer has seen of us; "cluster-mismatch": the number of the cluster
    # layout in which we are removed, or 0
    seen_n: int = 0


class LinkDown(NamedTuple):
    """Notice that our link to ``peer`` is gone; it may or may not have received the sent messages."""

    peer: NodeId


class DiskFull(NamedTuple):
    """Notice that the disk has more space left, or less, than the driver said last."""

    shortage: Shortage


class MemoryFull(NamedTuple):
    """Notice that the node takes more memory than it may; ``detail`` says how much. "": it does not now."""

    detail: str


class MovesLimited(NamedTuple):
    """Notice of other limits of the payload that this node gives to moves: bytes a second, partitions at a time.

    0 is no limit.
    """

    bytes_per_s: int
    at_once: int


class Damaged(NamedTuple):
    """Notice that stored batch ``number`` is unreadable: it must not be chosen, and is fetched from a peer.

    The driver keeps it until a `DropBatches` names it. `NodeCore.load_damaged` takes those that a start finds.
    """

    number: int


class CleanStop(NamedTuple):
    """Finish: journal the holds with their remaining times. Nothing may be sent or answered afterwards."""


Event = Union[
    Received,
    Ours,
    Request,
    Unsent,
    Unposted,
    Gone,
    Durable,
    LinkUp,
    HelloRefused,
    LinkDown,
    DiskFull,
    MemoryFull,
    MovesLimited,
    Damaged,
    CleanStop,
]
