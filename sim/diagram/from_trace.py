"""A story out of a path of the explorer: one step after the other, without times."""

from __future__ import annotations

from quorumq.core.values.types import NodeId
from sim.diagram.story import Item, Story
from sim.explorer.search import search
from sim.explorer.steps import Action, Explorer, Step
from sim.explorer.table import left_out
from sim.explorer.trace import named_teller
from sim.rules import Rule


def story_of_trace(rule: Rule, states_max: int, seconds: float) -> Story:
    """Return the shortest path to a broken promise, without a rule that has a scenario; bounds as in `search`.

    Raises:
        LookupError: none was found.
    """
    assert rule.scenario is not None
    with left_out(rule):
        explorer = Explorer(rule.scenario)
        result, path = search(explorer, states_max, seconds)
        if not path:
            raise LookupError(
                f"{rule.name}: {result.verdict}, in {result.states:,} states of {rule.scenario.name}"
            )
        items = items_of_path(explorer, path)
    about = [f"scenario {rule.scenario.name}, {len(path)} steps", f"left out: {rule.says}"]
    broken = [result.violation]
    items.append(Item("broken", len(path), None, "", "BROKEN", result.violation, tone="broken"))
    return Story(f"Without {rule.name}: {result.violation.split(':')[0]}", about, items, broken, unit="step")


def items_of_path(explorer: Explorer, path: list[Step]) -> list[Item]:
    """Return each step as a mark, and messages from the step that sends them to the step that delivers them."""
    teller = named_teller(explorer, path)
    items: list[Item] = []
    under_way: dict[int, list[Item]] = {}
    state = explorer.first
    for number, (action, after, _) in enumerate(path, 1):
        description, came = teller.tell(state, action, after)
        lane = lane_of(explorer, action)
        says = description + "".join(f"; {outcome}" for outcome in came)
        answers = teller.answers(state, after)
        text = answers[-1].split(" (")[0] if answers else word_of(action, description)
        tone = "deliver" if text.startswith("DELIVERED") else "node" if lane else "phase"
        items.append(Item("mark", number, None, lane, text, says, tone=tone))
        if action[0] == "deliver":
            for item in under_way.get(action[1], ())[:1]:
                item.end = number
                item.says += f", arrives in step {number}"
        before = explorer.messages(state)
        for message in explorer.messages(after):
            if message in before:
                continue
            envelope = explorer.traffic.messages.all[message]
            text = teller.content(envelope.message).split(" to round ")[0]
            says = f"{text} from {envelope.sender} to {envelope.to}"
            source, target = f"node:{envelope.sender}", f"node:{envelope.to}"
            item = Item("packet", number, None, source, text, says, target, tone=tone_of(text))
            under_way.setdefault(message, []).insert(0, item)
            items.append(item)
        state = after
    for item in (item for sent in under_way.values() for item in sent if item.end is None):
        item.says += ", has not arrived"
    return items


TONES = {"HOLD": "hold", "OK": "hold", "NOK": "hold", "RELEASE": "hold", "ACK": "ack", "TOMBED": "ack",
         "STORE": "store", "MERGE": "store", "MERGED": "store"}  # fmt: skip


def lane_of(explorer: Explorer, action: Action) -> str:
    """Return the lane in which a step happens."""
    if action[0] == "deliver":
        return f"node:{explorer.traffic.messages.all[action[1]].to}"
    names: tuple[NodeId, ...] = tuple(explorer.scenario.index)
    return next((f"node:{part}" for part in action[1:] if part in names), "")


def word_of(action: Action, description: str) -> str:
    """Return a step in a word or two."""
    if action[0] == "deliver":
        return ""
    return {"ask": description.split(": ", 1)[-1].split(" through ")[0], "tick": "tick"}.get(
        str(action[0]), str(action[0])
    )


def tone_of(text: str) -> str:
    """Return the tone of a message."""
    word = text.split(" ", 1)[0]
    return TONES.get(word, "reject" if "REJECT" in word else "operator")
