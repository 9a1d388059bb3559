"""The outside world's knowledge, and the promises held against it.

Facts are the requests and answers of clients; nothing in here looks into a node. Every promise of docs/protocol.md,
section 2, that a cluster of one message can break is checked where the fact arises that would break it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from quorumq.core import messages as m
from quorumq.core.values import limits
from quorumq.core.values.deadnames import DEAD_SUFFIX
from quorumq.core.values.types import STAMP_ZERO, Group, Latest, NodeId, ProducerId, Receipt, Stamp
from sim.explorer.labels import NO_TEXT, disordered, text_of
from sim.explorer.scenario import CLAIM_S, HOLD_S

WAITING, LIVE, OVER, NOTHING, ACKING, REJECTED, LEFT = (
    "waiting",
    "live",
    "over",
    "nothing",
    "acking",
    "rejected",
    "left",
)


class Attempt(NamedTuple):
    """One FETCH, and its outcome. A delivery is LIVE until ``until`` unless its client settles it before."""

    node: NodeId
    phase: str
    sent_at: float
    after_ack: int  # it was started after an ACK of this generation had succeeded; -1 for none
    receipt: Receipt | None = None
    until: float = 0.0
    of_dead: bool = False  # for a dead letter
    idle: bool = True  # its client has nothing in hand
    after_rewind: int = 0  # it was started after this generation was confirmed, …
    after_cover: int = 0  # … and after this one, which covers the message, not followed by one that does not
    after_redrive: tuple[int, int] = (-1, -1)  # a FETCH of dead letters: after a redrive to this life said OK
    after_purge: int = -1  # it was started after a purge of the backlog of this generation had said OK
    # It was started after the group was deleted, and before a request to make it again.
    after_deletion: bool = False
    # It was started while the group was paused, after this number of requests that end a pause; -1 for none.
    after_pause: int = -1
    claimed: float = 0.0  # its client's claim stands until then


class Asked(NamedTuple):
    """A client's request that is not answered yet."""

    key: int
    # "ack" | "reject" | "dead" | "extend" | "claim" | "leave" | "redrive" | "purge" | "clear" | "beside" | "rewind" |
    # "skip" | "unmake" | "make" | "pause" | "resume" | "publish", or one of `OPERATIONS`
    kind: str
    attempt: int  # index of the delivery, or of the operation; -1 if it is about neither
    node: NodeId
    sent_at: float
    life: tuple[int, int]  # generation and n
    rewound: int  # the generation that was confirmed when it was sent
    after_ack: int  # an EXTEND: it was sent after an ACK of this generation had succeeded; -1 for none
    # A pause: number of requests that end a pause when it was sent, if all had been answered with success; else -1.
    after_ends: int = -1


class Operation(NamedTuple):
    """One request about a topic, and its outcome: "", "asked", "done", "conflict" or "unknown"."""

    phase: str = ""
    made: Stamp = STAMP_ZERO  # the creation whose topic it is, once created
    # Number of requests to move the group when this one began, if all had been answered with success; else -1.
    moved: int = 0
    # It was asked after what bears on it was OK: of "send", a creation from latest, and of "read" that no FETCH is to
    # make a group.
    after: bool = False
    text: int | None = None  # the label's text, as a change writes it or a read showed it
    after_texts: tuple[int, ...] = ()  # those of the operations that had been answered when it was asked
    name: ProducerId | None = None  # the id of a name, as it was found
    after_name: ProducerId | None = None  # the id under which the name was OK when it was asked for


class Observations(NamedTuple):
    """Requests of clients, and the answers that they got."""

    attempts: tuple[Attempt, ...] = ()
    asked: tuple[Asked, ...] = ()
    # The highest delivered, of the group and its dead letters.
    token: tuple[Stamp | None, Stamp | None] = (None, None)
    # The newest life whose ACK returned `acked`: of the group, and of its dead letters.
    acked: tuple[int, int] = (-1, -1)
    finished: int = -1  # some ACK of this generation succeeded
    # REJECT to the dead letters said OK at this life; nothing was done about it since.
    dead: tuple[int, int] = (-1, -1)
    # A redrive to this life said OK; nothing that could undo it was done since.
    redriven: tuple[int, int] = (-1, -1)
    rewound: int = 0  # the newest generation that was confirmed
    covers: int = 0  # the same if it covers the message
    purged: int = -1  # a purge of the backlog of this generation said OK
    deleted: bool = False  # the group was deleted, without a later request to make it again
    moved: bool = False  # there was a request for a generation that covers the message anew
    keys: int = 0
    operations: tuple[Operation, ...] = ()
    kinds: tuple[str, ...] = ()  # kind of each operation
    groups: tuple[Group, ...] = ()  # each register of the group that any node has had, by generation
    # Register of the newest creation that was OK, until a request to move it.
    stands: Group | None = None
    before: bool = False  # the message was OK before the first request for the group
    acks_end_nothing: bool = False  # as in `Scenario`
    # A pause of the group said OK, and nothing was sent since that ends a pause.
    paused: bool = False
    pause_ends: tuple[int, int] = (0, 0)  # requests that end a pause: sent, and answered with success
    published: bool = False  # the PUBLISH of the message was OK

    @property
    def reads_anew(self) -> bool:
        """Return True if a confirmed rewind covers the message, and it was not settled since."""
        return self.covers > max(self.finished, 0)


CREATIONS = ("set", "set latest", "read", "read latest")
MOVES = ("again", "remove")
GROUP_OPERATIONS = (*CREATIONS, *MOVES)
"""Operations on the group: a creation, from earliest or latest, by SETGROUP or by a FETCH; a rewind; a deletion."""

COVERING = ("rewind", "unmake", "make")
"""After these the group may read the message anew."""

UNPAUSING = ("resume", "unmake")
"""These end a pause."""

OF_LABELS = ("label", "labels")
"""A change of the label, to the number of this operation; a read."""

OF_NAMES = ("name", "put")
"""A question for the id of the name; the PUBLISH under the id that was found."""

OPERATIONS = (
    "create",
    "late create",
    "alter",
    "delete",
    "forbid",
    "send",
    *OF_LABELS,
    *OF_NAMES,
    *GROUP_OPERATIONS,
)

KEY_OF_SETTLING = 100
"""Keys of settling requests begin here; FETCHes have 1, 2, 3 …"""


def is_operation(kind: str) -> bool:
    """Return True if a request is one about a topic, or the members."""
    return kind in OPERATIONS or kind.split()[0] in ("add", "drain", "drop", "move", "voter")


def deadline(sent_at: float, seconds: float = HOLD_S) -> float:
    """Return the client's deadline for a hold that was asked for at ``sent_at``, or for a claim."""
    return sent_at + limits.DEADLINE_SHARE * seconds


def started(
    observed: Observations, node: NodeId, now: float, *, of_dead: bool = False, idle: bool = True
) -> tuple[Observations, int]:
    """Note that a FETCH goes out; return the facts and its key."""
    attempt = Attempt(
        node,
        WAITING,
        now,
        observed.finished,
        of_dead=of_dead,
        idle=idle,
        after_rewind=observed.rewound,
        after_cover=observed.covers,
        after_redrive=observed.redriven if of_dead else (-1, -1),
        after_purge=observed.purged,
        after_deletion=observed.deleted,
        after_pause=observed.pause_ends[0] if observed.paused else -1,
    )
    return observed._replace(attempts=(*observed.attempts, attempt)), len(observed.attempts) + 1


def asked(
    known: Observations, kind: str, index: int, node: NodeId, life: tuple[int, int], now: float
) -> tuple[Observations, int]:
    """Note that the client settles a delivery, or redrives; return the facts and the request's key.

    From then on the client does no more work under that delivery, unless it extends it. A LEAVE says that it never
    did. What was a dead letter need not be one once a redrive, a purge, an ACK, or a rewind that covers it is
    on its way, nor what was redriven open at its n.
    """
    key = KEY_OF_SETTLING + known.keys
    after_ack = known.finished if kind == "extend" else -1
    sent, done = known.pause_ends
    after_ends = sent if kind == "pause" and sent == done else -1
    asking = Asked(key, kind, index, node, now, life, known.rewound, after_ack, after_ends)
    known = known._replace(asked=(*known.asked, asking), keys=known.keys + 1)
    if is_operation(kind):
        return _operating(known, kind, index), key
    phase = {"ack": ACKING, "reject": REJECTED, "dead": REJECTED, "leave": LEFT}.get(kind)
    if phase is not None:
        until = known.attempts[index].until if kind == "ack" else 0.0
        known = with_attempt(known, index, phase=phase, until=until, claimed=0.0)
    if kind in ("ack", "redrive", "purge", "rewind", "unmake"):
        known = known._replace(dead=(-1, -1))
    if kind in COVERING:
        known = known._replace(redriven=(-1, -1), moved=True)
    if kind == "make":
        known = known._replace(deleted=False)
    if kind in UNPAUSING:
        known = known._replace(paused=False, pause_ends=(sent + 1, done))
    return known, key


def with_attempt(observed: Observations, index: int, **changes: object) -> Observations:
    """Return ``observed`` with one attempt changed."""
    changed = observed.attempts[index]._replace(**changes)  # type: ignore[arg-type]
    return observed._replace(attempts=put(observed.attempts, index, changed))


def with_operation(observed: Observations, index: int, changed: Operation) -> Observations:
    """Return ``observed`` with one operation changed."""
    return observed._replace(operations=put(observed.operations, index, changed))


def ticked(observed: Observations, now: float) -> Observations:
    """Let time pass: deliveries whose deadline is over are over."""
    for index, attempt in enumerate(observed.attempts):
        if attempt.until and attempt.until <= now:
            phase = OVER if attempt.phase == LIVE else attempt.phase
            observed = with_attempt(observed, index, phase=phase, until=0.0)
        if attempt.claimed and attempt.claimed <= now:
            observed = with_attempt(observed, index, claimed=0.0)
    return observed


def lost(observed: Observations, node: NodeId) -> Observations:
    """Note that a node crashed: its clients get no answers to open requests any more."""
    for index, attempt in enumerate(observed.attempts):
        if attempt.phase == WAITING and attempt.node == node:
            observed = came_to_nothing(observed, index)
    return observed._replace(asked=tuple(item for item in observed.asked if item.node != node))


def came_to_nothing(observed: Observations, index: int) -> Observations:
    """Note that a FETCH delivered nothing, and never will."""
    nothing = Attempt("", NOTHING, 0.0, -1, of_dead=observed.attempts[index].of_dead)
    return observed._replace(attempts=put(observed.attempts, index, nothing))


def answered(
    observed: Observations, key: int, reply: m.ClientReply, now: float, group: Group | None = None
) -> tuple[Observations, str]:
    """Return the facts after a client got an answer, and the promise that it breaks, or "".

    Args:
        group: the register as the node has it that answers.
    """
    if isinstance(reply, m.FetchReply) and key < KEY_OF_SETTLING:
        return _delivered(observed, key - 1, reply, now)
    if key < KEY_OF_SETTLING:
        return came_to_nothing(observed, key - 1), ""
    requests = [item for item in observed.asked if item.key == key]
    assert len(requests) == 1, f"request {key} was answered and is not open"
    request = requests[0]
    observed = observed._replace(asked=tuple(item for item in observed.asked if item.key != key))
    if is_operation(request.kind):
        return _operated(observed, request, reply, group)
    if isinstance(reply, m.SettleReply):
        (verdict,) = reply.verdicts
        return _settled(observed, request, verdict.outcome, now)
    if request.kind in UNPAUSING and not isinstance(reply, m.Failed):
        observed = observed._replace(pause_ends=(observed.pause_ends[0], observed.pause_ends[1] + 1))
    if request.kind in ("pause", "resume") and isinstance(reply, m.GroupReply):
        holds = request.kind == "pause" and request.after_ends == observed.pause_ends[0]
        return observed._replace(paused=observed.paused or holds), ""
    if isinstance(reply, m.GroupReply):
        if request.kind == "unmake" and not any(item.kind == "make" for item in observed.asked):
            observed = observed._replace(deleted=True)
        generation = reply.group.generation
        if generation > observed.rewound:
            covers = generation if request.kind in ("rewind", "make") else 0
            observed = observed._replace(rewound=generation, covers=covers)
        return observed, ""
    if isinstance(reply, m.PurgeReply) and request.kind == "clear":
        return observed._replace(purged=max(observed.purged, request.rewound)), ""
    assert isinstance(reply, m.Failed | m.NotedReply | m.PublishReply | m.PurgeReply), reply
    return observed._replace(published=observed.published or isinstance(reply, m.PublishReply)), ""


def _operating(known: Observations, kind: str, index: int) -> Observations:
    """Note that operation ``index`` is asked."""
    if kind == "put":
        return with_operation(known, index, known.operations[index]._replace(phase="asked"))
    if kind == "name":
        ids = [asked.name for asked in _of_kind(known, "name") if asked.phase == "done"]
        return with_operation(known, index, Operation("asked", after_name=ids[0] if ids else None))
    if kind in OF_LABELS:
        answered = {asked.text for asked in _of_kind(known, *OF_LABELS) if asked.phase == "done"}
        before = tuple(sorted(text for text in {NO_TEXT, *answered} if text is not None))
        text = index if kind == "label" else None
        return with_operation(known, index, Operation("asked", text=text, after_texts=before))
    moves = _of_kind(known, *MOVES)
    moved = len(moves) if all(operation.phase == "done" for operation in moves) else -1
    if kind == "send":
        after = known.stands is not None and bool(known.stands.latest)
    else:
        after = any(operation.phase == "done" for operation in _of_kind(known, "forbid"))
    if kind in MOVES:
        known = known._replace(stands=None)
    return with_operation(known, index, Operation("asked", moved=moved, after=after))


def _of_kind(observed: Observations, *kinds: str) -> list[Operation]:
    """Return the operations of these kinds that were asked."""
    both = zip(observed.kinds, observed.operations, strict=True)
    return [operation for kind, operation in both if kind in kinds and operation.phase]


def is_asked_for(observed: Observations) -> bool:
    """Return True if a SETGROUP, or a FETCH sent before groups were forbidden, may make the group."""
    return any(not operation.after for operation in _of_kind(observed, "read", "read latest")) or bool(
        _of_kind(observed, "set", "set latest")
    )


def seen(observed: Observations, group: Group) -> tuple[Observations, str]:
    """Note a node's register of the group. Of each generation there is one, which may begin."""
    value = group._replace(latest=Latest(min(group.latest, Latest.SKIPPING)))
    if value in observed.groups:
        return observed, ""
    others = [other for other in observed.groups if other.generation == value.generation]
    problem = f"one register: generation {value.generation} of the group has been two" if others else ""
    return observed._replace(groups=tuple(sorted({*observed.groups, value}))), problem


def _created(observed: Observations, request: Asked, group: Group) -> tuple[Observations, str]:
    """Note that a creation of the group is OK, with its register."""
    asked = observed.operations[request.attempt]
    observed = with_operation(observed, request.attempt, asked._replace(phase="done"))
    if asked.moved != len(_of_kind(observed, *MOVES)):  # there was a request to move it meanwhile
        return observed, ""
    problem = ""
    if observed.stands is not None and observed.stands != group:
        problem = "stands: a creation of the group was OK, and a later one is told of another register"
    return observed._replace(stands=group), problem


def _operated(
    known: Observations, request: Asked, reply: m.ClientReply, group: Group | None
) -> tuple[Observations, str]:
    before = known.operations[request.attempt]
    if isinstance(reply, m.GroupReply) and request.kind in CREATIONS:
        return _created(known, request, reply.group)
    if isinstance(reply, m.FetchReply):
        assert group is not None, "a FETCH that is answered has its group"
        return _created(known, request, group)
    if request.kind == "put" and isinstance(reply, m.PublishReply):
        return with_operation(known, request.attempt, before._replace(phase="done")), ""
    if isinstance(reply, m.FindNameReply):
        other = before.after_name is not None and before.after_name != reply.producer_id
        problem = (
            "names: a name that was OK under one id before it was asked for gets another" if other else ""
        )
        return with_operation(
            known, request.attempt, before._replace(phase="found", name=reply.producer_id)
        ), problem
    if isinstance(reply, m.LabelsReply):
        text = text_of(reply) if request.kind == "labels" else before.text
        known = with_operation(known, request.attempt, before._replace(phase="done", text=text))
        texts = [(asked.text, asked.after_texts) for asked in known.operations if asked.text is not None]
        return known, disordered(texts)
    if isinstance(reply, m.PublishReply):
        known = known._replace(before=not _of_kind(known, *GROUP_OPERATIONS))
    if isinstance(reply, m.PublishReply | m.GroupReply):
        return with_operation(known, request.attempt, before._replace(phase="done")), ""
    if request.kind == "create" and isinstance(reply, m.TopicReply):
        changed = Operation("done", reply.topic.made)
        others = [
            operation
            for operation in known.operations
            if operation.phase == "done" and operation.made > STAMP_ZERO and operation != changed
        ]
        problem = "one topic: two clients were told that another one was created" if others else ""
        return with_operation(known, request.attempt, changed), problem
    if isinstance(reply, m.TopicReply | m.ChangeMembersReply):
        again = request.kind == "late create" and isinstance(reply, m.TopicReply) and reply.topic.deletions
        problem = "DELETE: a creation that was made before makes the topic again" if again else ""
        return with_operation(known, request.attempt, Operation("done")), problem
    assert isinstance(reply, m.Failed), reply
    phase = "conflict" if reply.code == "conflict" else "unknown"
    return with_operation(known, request.attempt, Operation(phase)), ""


def _delivered(
    observed: Observations, index: int, reply: m.FetchReply, now: float
) -> tuple[Observations, str]:
    attempt = observed.attempts[index]
    if not reply.slices:
        return came_to_nothing(observed, index), ""
    (delivery,) = reply.slices[0].deliveries
    receipt = delivery.receipt
    until = deadline(attempt.sent_at)
    if until <= now:  # the client never hands it over
        return with_attempt(observed, index, phase=OVER, receipt=receipt, sent_at=0.0), ""
    ballot, generation = receipt.owner.ballot, receipt.generation
    queue = int(attempt.of_dead)
    token, acked = observed.token[queue], observed.acked[queue]
    problem = ""
    live = live_beside(observed, index, receipt)
    if live:
        problem = f"G2 exclusive: a{index} is delivered while a{live[0]} is inside its hold"
    elif acked >= 0 and life_of(observed, acked) >= life(receipt):
        problem = f"G3 final: a{index} is delivered after the ACK of a{acked} returned `acked`"
    elif claims := [k for k, other in enumerate(observed.attempts) if other.claimed and k != index]:
        problem = f"claims: a{index} is delivered inside the claim of a{claims[0]}"
    elif attempt.after_deletion:
        problem = f"DELETE: a{index} was fetched after the group was deleted"
    elif attempt.after_pause == observed.pause_ends[0] and not attempt.of_dead:
        problem = f"PAUSE: a{index} was fetched after a pause of the group had said OK"
    elif attempt.after_rewind > generation and not (attempt.of_dead or receipt.n):
        problem = f"rewind: a{index} was fetched after a rewind was confirmed, and is of an older generation"
    elif attempt.after_cover > generation and observed.covers:
        problem = f"rewind: a{index} was fetched after a rewind that covers it, and is of an older generation"
    elif attempt.after_ack >= (generation if observed.moved else 0) and not attempt.of_dead:
        problem = f"G3 final: a{index} was fetched after an ACK had succeeded, and is delivered"
    elif attempt.after_purge >= generation and receipt.n == 0 and not attempt.of_dead:
        problem = f"purge: a{index} was fetched after a purge of all that was published had said OK"
    elif attempt.after_redrive > (generation, receipt.n):
        problem = f"G7 dead letters: a{index} is a dead letter, fetched after its redrive had said OK"
    elif observed.dead >= (generation, receipt.n) and observed.dead[0] == generation and not attempt.of_dead:
        problem = f"G7 dead letters: a{index} is delivered at n={receipt.n}, where it is a dead letter"
    elif not attempt.idle and ran_out(observed, receipt):  # and one more may run out
        problem = f"neighbours: a{index} is delivered beside others, and a{ran_out(observed, receipt)[0]} has run out"
    elif token is not None and ballot <= token:
        problem = f"fencing: a{index} is delivered with a token that is not above that of an earlier delivery"
    observed = with_attempt(observed, index, phase=LIVE, receipt=receipt, until=until, sent_at=0.0)
    return observed._replace(token=put(observed.token, queue, max(ballot, token or ballot))), problem


def live_beside(observed: Observations, index: int, receipt: Receipt) -> list[int]:
    """Return the other deliveries of the queue inside their holds; one with a sent ACK counts only up to its own life.

    If an ACK ends nothing, it counts in any life: nodes that know the ACK grant a newer life at once, and no others do.
    """
    of_dead = observed.attempts[index].of_dead
    return [
        k
        for k, other in enumerate(observed.attempts)
        if other.until
        and k != index
        and other.of_dead == of_dead
        and (
            other.phase == LIVE
            or (other.receipt is not None and life(other.receipt) >= life(receipt))
            or (other.phase == ACKING and observed.acks_end_nothing)
        )
    ]


def ran_out(observed: Observations, receipt: Receipt) -> list[int]:
    """Return the deliveries of the same message, generation and n that no client ended."""
    return [
        k
        for k, other in enumerate(observed.attempts)
        if other.phase == OVER and other.receipt is not None and other.receipt[:4] == receipt[:4]
    ]


def put(values: tuple[Any, ...], at: int, value: object) -> tuple[Any, ...]:
    """Return ``values`` with one of them changed."""
    return (*values[:at], value, *values[at + 1 :])


def life(receipt: Receipt) -> tuple[int, int]:
    """Return the life that an ACK settles: a generation, and n for a dead letter."""
    return (receipt.generation, receipt.n if receipt.group.endswith(DEAD_SUFFIX) else 0)


def life_of(observed: Observations, index: int) -> tuple[int, int]:
    """Return the `life` of a delivery."""
    receipt = observed.attempts[index].receipt
    assert receipt is not None
    return life(receipt)


def _settled(observed: Observations, request: Asked, outcome: str, now: float) -> tuple[Observations, str]:
    if request.kind == "ack" and outcome in ("acked", "acked_after_expiry", "acked_unproven"):
        receipt = observed.attempts[request.attempt].receipt
        assert receipt is not None
        problem = ""
        queue = int(observed.attempts[request.attempt].of_dead)
        if outcome == "acked":
            before = observed.acked[queue]
            newest = next(
                (
                    other.receipt
                    for other in observed.attempts
                    if other.receipt is not None and other.receipt.owner.ballot == observed.token[queue]
                ),
                receipt,
            )
            later = newest.owner.ballot > receipt.owner.ballot and life(newest) == life(receipt)
            if before not in (-1, request.attempt) and life_of(observed, before) == life(receipt):
                problem = f"one `acked`: a{request.attempt} hears it after a{before} did"
            elif later:
                problem = f"one `acked`: a{request.attempt} hears it although a later delivery was made"
            if before < 0 or life_of(observed, before) <= life(receipt):
                observed = observed._replace(acked=put(observed.acked, queue, request.attempt))
        if not queue:
            observed = observed._replace(finished=max(observed.finished, receipt.generation))
        return observed, problem
    if request.kind == "dead" and outcome == "ok":
        return observed._replace(dead=max(observed.dead, request.life)), ""
    if request.kind == "redrive" and outcome == "ok" and not observed.moved:
        return observed._replace(redriven=(request.life[0], request.life[1] + 1)), ""
    if request.kind == "claim" and outcome == "ok":
        mine = observed.attempts[request.attempt].phase in (LIVE, OVER)
        claimed = deadline(request.sent_at, CLAIM_S) if mine else 0.0
        return with_attempt(observed, request.attempt, claimed=claimed if claimed > now else 0.0), ""
    if request.kind == "extend" and outcome == "ok":
        return _extended(observed, request, now)
    return observed, ""


def _extended(observed: Observations, request: Asked, now: float) -> tuple[Observations, str]:
    attempt = observed.attempts[request.attempt]
    until = deadline(request.sent_at)
    if attempt.phase not in (LIVE, OVER) or until <= now:
        return observed, ""
    assert attempt.receipt is not None
    live = live_beside(observed, request.attempt, attempt.receipt)
    token, acked = observed.token[int(attempt.of_dead)], observed.acked[int(attempt.of_dead)]
    problem = ""
    if live:
        problem = f"G2 exclusive: a{request.attempt} is extended while a{live[0]} is inside its hold"
    elif token is not None and attempt.receipt.owner.ballot < token:
        problem = f"fencing: a{request.attempt} is live again after a delivery with a higher token"
    elif not attempt.of_dead and request.after_ack >= attempt.receipt.generation:
        problem = f"G3 final: a{request.attempt} is extended, and that was asked after an ACK had succeeded"
    elif acked >= 0 and life_of(observed, acked) >= life(attempt.receipt):
        problem = f"G3 final: a{request.attempt} is live again after the ACK of a{acked} returned `acked`"
    return with_attempt(observed, request.attempt, phase=LIVE, until=max(attempt.until, until)), problem
