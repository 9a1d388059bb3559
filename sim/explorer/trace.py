"""A path through the states, as a person can read it.

One numbered line per step: the action, and after an arrow its results. Attempts are a0, a1 … in the order in
which their FETCHes went out; a hold is named by the attempt that it belongs to, so `HOLD a1` is a HOLD with the
ballot of attempt 1.
"""

from __future__ import annotations

from quorumq.core.requests.holdround import HoldRound
from quorumq.core.values.types import STAMP_ZERO
from sim.explorer.requests import creation, is_change
from sim.explorer.scenario import START
from sim.explorer.steps import Action, Explorer, State, Step
from sim.message_text import MessageText

BY_ITSELF = {
    "give up": "{} gives its round {} up",
    "fsync": "{} syncs its oldest unsynced record",
    "connection dies": "{}: the connection of a{} dies, LEAVE",
    "link": "{} and {} link up",
    "crash": "{} crashes and starts again",
    "clean stop": "{} stops cleanly and starts again",
    "lose": "{} loses its disk, and starts again with an empty one",
    "adopt": "{} adopts the layout",
    "reclaim": "{} looks for what to reclaim",
    "close": "{} promises to close the producer id, and asks if all are done with it",
    "restore": "{} starts from an old backup of its directory, elsewhere",
    "offer": "{} offers anti-entropy to {}",
    "again": "{} proposes again",
}
"""Events without a request: the node, and the rest of the action."""

OPERATORS = {
    "alter": "ALTER",
    "delete": "DELETE",
    "rewind": "REWIND",
    "skip": "REWIND to behind the message",
    "unmake": "DELETE of the group",
    "make": "CREATE of the group",
    "late make": "CREATE of the group, made at the beginning,",
    "pause": "PAUSE",
    "resume": "RESUME",
    "late resume": "RESUME, made at the beginning,",
    "late create": "CREATE, made at the beginning,",
    "clear": "PURGE of the backlog",
    "beside": "PURGE of another message",
    "forbid": "no FETCH makes a group",
    "set": "CREATE of the group, from earliest,",
    "set latest": "CREATE of the group, from latest,",
    "read": "first FETCH, from earliest,",
    "read latest": "first FETCH, from latest,",
    "again": "REWIND",
    "remove": "DELETE of the group",
    "send": "PUBLISH",
    "label": "change of the label",
    "labels": "read of the labels",
    "name": "FIND-NAME",
    "put": "PUBLISH under the id of the name",
}
"""Requests of operators."""


def explain(explorer: Explorer, path: list[Step]) -> list[str]:
    """Return ``path``, from the scenario's first state, one line per step, and the broken promise at the end."""
    teller = Teller(explorer)
    for _, after, _ in path:  # ballots that are taken on behalf of another node: their deliveries name them
        for index, attempt in enumerate(explorer.observations(after).attempts):
            if attempt.receipt is not None:
                teller.names.setdefault(attempt.receipt.owner.ballot, f"a{index}")
    lines: list[str] = []
    state = explorer.first
    for number, (action, after, problem) in enumerate(path, 1):
        text, outcome = teller.tell(state, action, after)
        line = f"{number:2}. {text}"
        if outcome:
            line += f"  ->  {'; '.join(outcome)}"
        lines.append(line)
        if problem:
            lines.append(f"    !! {problem}")
        state = after
    return lines


class Teller(MessageText):
    """Names ballots by attempt, and describes steps."""

    def __init__(self, explorer: Explorer) -> None:
        super().__init__()
        self.explorer = explorer

    def tell(self, before: State, action: Action, after: State) -> tuple[str, list[str]]:
        """Return the text of an action, and its results."""
        self._learn_proposals(after)
        text, outcome = self._tell(before, action, after)
        known = set(self.explorer.messages(before))
        copies = self.explorer.traffic.fetching
        new = [
            message
            for message in self.explorer.messages(after)
            if message not in known and copies.get(message) != message
        ]
        outcome = [*outcome, *[self.message(message) for message in new]]
        return text, outcome + self.answers(before, after)

    def _tell(self, before: State, action: Action, after: State) -> tuple[str, list[str]]:
        match action:
            case ("deliver", int(message)):
                return f"{self.message(message)} arrives", []
            case ("fetch", str(name), int(index), bool(ahead)):
                self._learn_ballot(after, name, index)
                clock = "" if ahead else ", by a clock that lags"
                attempt = self.explorer.observations(after).attempts[index]
                suffix = " of dead letters" if attempt.of_dead else "" if attempt.idle else " beside others"
                return f"FETCH a{index}{suffix} through {name}{clock}", []
            case ("ask", str(name), str(how), int(index), int(n)):
                said = {"dead": "REJECT to dead letters", "now": "REJECT", "delay": "REJECT with delay"}.get(
                    how, how.upper()
                )
                if how in OPERATORS:
                    return f"operator: {OPERATORS[how]} through {name}", []
                if is_change(how):
                    return f"operator: {how.upper()} through {name}", []
                if how == "create":
                    rf = creation(self.explorer.scenario, index).rf
                    return f"client: CREATE c{index} (rf {rf}) through {name}", []
                if how == "publish":
                    for waiting in range(len(self.explorer.observations(after).attempts)):
                        self._learn_ballot(after, name, waiting)
                    return f"client: PUBLISH through {name}", []
                of = f"of a{index}" if index >= 0 else f"of the dead letter at n={n}"
                return f"client: {said} {of} through {name}", []
            case ("wipe", str(name)):
                others = self.explorer.scenario.wiped_hears
                return f"{name} loses its disk and resyncs from {', '.join(others) or 'all others'}", []
            case (str(suffix), str(name), *more) if suffix in BY_ITSELF:
                return BY_ITSELF[suffix].format(name, *more), []
            case ("tick",):
                return f"a tick: it is {self.explorer.tick(after)}", []
        return str(action), []

    def _learn_proposals(self, after: State) -> None:
        for local in after[:-3]:
            context = self.explorer.nodes.locals[local].core.context
            for asked in self.explorer.observations(after).asked:
                shared = [
                    registration
                    for registration in context.registrations.values()
                    if asked.key in registration.awaited_by
                ]
                proposer = getattr(context.requests.get(asked.key), "proposer", None)
                proposer = proposer or next(
                    (getattr(registration, "proposer", None) for registration in shared), None
                )
                if proposer is not None and proposer.ballot not in (STAMP_ZERO, *self.names):
                    again = "'" * sum(name.startswith(f"c{asked.attempt}") for name in self.names.values())
                    self.names[proposer.ballot] = f"c{asked.attempt}{again}"

    def _learn_ballot(self, after: State, name: str, index: int) -> None:
        core = self.explorer.nodes.locals[after[self.explorer.scenario.index[name]]].core
        coordinator = core.context.requests.get(index + 1)
        if coordinator is not None:
            for round_ in coordinator.rounds.values():
                if isinstance(round_, HoldRound):
                    self.names.setdefault(round_.owner.ballot, f"a{index}")

    def answers(self, before: State, after: State) -> list[str]:
        """Return the answers that clients got."""
        old, new = self.explorer.observations(before), self.explorer.observations(after)
        lines: list[str] = []
        for index, attempt in enumerate(new.attempts):
            was = old.attempts[index] if index < len(old.attempts) else None
            if attempt.receipt is not None and (was is None or was.receipt is None):
                lines.append(f"DELIVERED a{index} (until tick {self.until(attempt.until)})")
            elif attempt.phase == "nothing" and was is not None and was.phase != "nothing":
                lines.append(f"a{index} gets nothing")
            elif was is not None and attempt.until > was.until:
                lines.append(f"a{index} is EXTENDED (until tick {self.until(attempt.until)})")
        for index, (then, now) in enumerate(zip(old.operations, new.operations, strict=True)):
            if now != then and now.phase != "asked":
                kind, via = self.explorer.scenario.operators[index]
                name, of = f"{kind.upper()} through {via}", ""
                if kind == "create":
                    name = f"c{index}"
                    of = f" ({self.ballot(now.made)}'s topic)" if now.phase == "done" else ""
                if now.name is not None:
                    of = f" (window {now.name.k})"
                if now.text is not None:
                    of = f" ({now.text if now.text >= 0 else 'no text'})"
                lines.append(
                    f"{name} hears {'OK' if now.phase in ('done', 'found') else now.phase.upper()}{of}"
                )
        if new.finished > old.finished:
            lines.append("the ACK succeeded")
        for acked, known in zip(new.acked, old.acked, strict=True):
            if acked != known:
                lines.append(f"`acked` for a{acked}")
        if new.dead > old.dead:
            lines.append(f"ok: a dead letter at n={new.dead[1]}")
        if new.redriven > old.redriven:
            lines.append(f"ok: redriven to n={new.redriven[1]}")
        if new.purged > old.purged:
            lines.append("ok: PURGED")
        if new.paused > old.paused:
            lines.append("ok: PAUSED")
        if new.pause_ends[1] > old.pause_ends[1] and not new.deleted:
            lines.append("ok: RESUMED")
        if new.rewound > old.rewound:
            lines.append("ok: the group is deleted" if new.deleted else "ok: REWOUND")
        return lines

    def until(self, time: float) -> str:
        """Return a time in ticks."""
        return f"{time - START:.2f}"

    def message(self, number: int) -> str:
        """Return a message as one line."""
        envelope = self.explorer.traffic.messages.all[number]
        return f"{self.content(envelope.message)} {envelope.sender}→{envelope.to}"
