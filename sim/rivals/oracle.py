"""An oracle that elects leaders: it stands for Paxos, Raft or a controller, where a design says only that there is one.

It sees which processes run and can talk to a majority. A leader that does not is replaced after a gap; the next one
has a higher epoch. Nodes hear of it as long as they can talk to a majority: a leader that is cut off goes on
believing. None of the messages that a real election and its announcements take are counted, which is in favour of the
designs that need it.
"""

from __future__ import annotations

from typing import NamedTuple

from sim.rivals.harness import Run

TICK_S = 0.05


class Term(NamedTuple):
    """Leader of a partition, for one epoch."""

    leader: str  # its name
    epoch: int  # higher for each leader
    replicas: tuple[str, ...]  # replicas that may be elected next: they have everything that was confirmed


class Oracle:
    """Elections for one run, of partitions that are numbered from 0."""

    def __init__(self, run: Run, partitions: int) -> None:
        self.run = run
        names = run.options.node_names
        self.terms = {number: Term(names[number % len(names)], 1, names) for number in range(partitions)}
        self.lost_at: dict[int, float] = {}
        self.told: dict[str, tuple[int, dict[int, Term]]] = {}

    def begin(self) -> None:
        """Elect and announce from now on."""
        self.run.world.after(TICK_S, self.tick)

    def connected(self, name: str) -> bool:
        """Return True if the process there runs and can talk to a majority, both ways."""
        machine, blocked = self.run.machines[name], self.run.world.blocked
        if machine.core is None or machine.frozen_until > self.run.world.time:
            return False
        names = self.run.options.node_names
        reached = [n for n in names if (n, name) not in blocked and (name, n) not in blocked]
        return len(reached) > len(names) // 2

    def tick(self, _: object = None, __: object = None) -> None:
        """Look at all leaders, and tell the news."""
        world = self.run.world
        up = [name for name in self.run.options.node_names if self.connected(name)]
        for number, term in self.terms.items():
            if term.leader in up:
                self.lost_at.pop(number, None)
                continue
            since = self.lost_at.setdefault(number, world.time)
            able = [name for name in term.replicas if name in up]
            if able and world.time >= since + self.run.knobs.gap:
                least = min(able, key=lambda name: sum(t.leader == name for t in self.terms.values()))
                self.terms[number] = term._replace(leader=least, epoch=term.epoch + 1)
                del self.lost_at[number]
        for name in up:
            machine = self.run.machines[name]
            known = (machine.life, dict(self.terms))
            if self.told.get(name) != known:
                self.told[name] = known
                machine.core.on_terms(known[1])
        world.after(TICK_S, self.tick)

    def propose(self, number: int, epoch: int, replicas: tuple[str, ...]) -> bool:
        """Change a partition's electable replicas for its leader; refused if it is not the leader, or not in touch."""
        term = self.terms[number]
        if term.epoch != epoch or not self.connected(term.leader):
            return False
        self.terms[number] = term._replace(replicas=replicas)
        return True

    def leader(self, number: int) -> str:
        """Return the leader of a partition, for clients that ask."""
        return self.terms[number].leader
