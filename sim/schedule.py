"""Everything that a simulated run depends on, as values.

A run is a pure function of its schedule (and of the code). The schedule holds the seed, the options drawn
from it and the list of faults, written out in full. If a fault is removed, or an option changed, the rest stays
as it is, because each concern (network, disks, faults, workload, nodes) has a random stream of its own, named
by the seed.

Options are drawn per seed ("swarm"): if a run has no loss at all but many crashes, it finds errors that a run with
a little of everything does not.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from sim.fault_plan import (
    Fault,
    draw_bereavement,
    draw_damage,
    draw_faults,
    draw_losses,
    draw_one_clock,
    draw_relay,
    draw_silence,
)
from sim.options import Options
from sim.packets import Packet, packets_of
from sim.profiles import PROFILES, draw_distance

SHELL = "shell"
"""The profile whose runs are of the production shell, not of the core alone (sim/shell)."""


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name, as they are: `dataclasses.asdict` copies them all the way down."""
    return {name: getattr(value, name) for name in value.__slots__}


@dataclass(frozen=True, slots=True)
class Schedule:
    """One run, in full: the same schedule and the same code give the same run."""

    seed: int  # names the random streams
    profile: str  # that the options were drawn with
    options: Options  # options of the run
    faults: tuple[Fault, ...] = field(default_factory=tuple)  # faults of the run
    # Fates of packets, by name; a packet that is not named has the mean delay. None: it is
    # drawn.
    packets: tuple[Packet, ...] | None = None
    ends: float = 0.0  # when the run ends, in seconds, without being healed; 0: it is healed and drained

    def to_json(self) -> str:
        """Return the schedule as one line of JSON."""
        values = fields_of(self) | {"options": fields_of(self.options)}
        values["faults"] = [fields_of(fault) for fault in self.faults]
        if self.packets is None:
            del values["packets"]
        if not self.ends:
            del values["ends"]
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """Return the schedule of a text that `to_json` wrote.

        Raises:
            ValueError: it is not JSON, or names an option that does not exist.
        """
        data: dict[str, Any] = json.loads(text)
        try:
            options = Options(**{**data["options"], "hold_times": tuple(data["options"]["hold_times"])})
            faults = tuple(
                Fault(
                    **{
                        **fault,
                        "nodes": tuple(fault["nodes"]),
                        "links": tuple(tuple(pair) for pair in fault["links"]),
                    }
                )
                for fault in data["faults"]
            )
            packets = packets_of(data["packets"]) if data.get("packets") is not None else None
            return cls(data["seed"], data["profile"], options, faults, packets, data.get("ends", 0.0))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a schedule: {error}") from None


def draw(seed: int, profile: str = "swarm") -> Schedule:
    """Return the schedule of a seed, drawn as one of `PROFILES` says.

    Raises:
        ValueError: there is no such profile.
    """
    if profile not in PROFILES:
        raise ValueError(f"profile is {profile!r}: it must be one of {', '.join(PROFILES)}")
    options = PROFILES[profile](random.Random(f"{seed}/options"))
    if options.wait_max:
        stalls = draw_silence(random.Random(f"{seed}/silence"), options) if options.silent else ()
        return Schedule(seed, profile, options, stalls)
    options = draw_distance(random.Random(f"{seed}/distance"), options)
    faults = draw_faults(random.Random(f"{seed}/faults"), options)
    losses = draw_losses(random.Random(f"{seed}/losses"), options)
    losses += draw_damage(random.Random(f"{seed}/damage"), options, losses)
    relay = draw_relay(random.Random(f"{seed}/relay"), options, losses)
    faults += losses + relay
    faults += draw_bereavement(random.Random(f"{seed}/bereaved"), options, faults)
    if profile == "clocks":
        faults = draw_one_clock(random.Random(f"{seed}/clock"), options, faults)
    return Schedule(seed, profile, options, tuple(sorted(faults, key=lambda fault: fault.at)))
