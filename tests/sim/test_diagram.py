"""Diagrams: of runs, shrunk schedules and histories; and the page in a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sim.__main__ import main
from sim.command_line import write_rows
from sim.diagram.follow import follow
from sim.diagram.from_history import story_of_history
from sim.diagram.from_run import story_of_run
from sim.diagram.page import page_of
from sim.diagram.rows import ordinal
from sim.diagram.story import Item, Story, said_ids, without_nonce
from sim.replay import replay
from sim.rules import rule_named
from sim.schedule import Schedule, draw
from tests.browser import Browser

HOSTILE = "</script></style><img src=x onerror=\"document.title='pwned'\">&amp; ' \x00\x1b[31m\u202e"

SHRUNK = Schedule.from_json(
    r"""
{"seed":384,"profile":"swarm","options":{"late":3.858,"latency":0.03,"fsync":0.05,"clock_rate":0.0,"hold_time_max":2.0,
"hold_times":[1.0,1.0],"request_timeout":0.5,"sync_interval":0.5,"sync_grace":1.0,"max_deliveries":1,"producers":1,
"batches":2,"batch_messages":3,"consumers":3,"fetch_messages":1,"delay":0.5,"fault_time":8.0},
"faults":[],"packets":[["b","c","Hold",2,[0.0669]],["a","b","HoldReply",0,[0.0597]]],"ends":2.253}
"""
)
"""With the rule of RULE left out two have one message, as a HOLD was late."""

RULE = "no-replacing"


@pytest.fixture(scope="module")
def story() -> Story:
    return story_of_run(SHRUNK, rule_named(RULE))


def test_a_shrunk_run_is_told_with_its_packets_holds_and_fsyncs(story: Story) -> None:
    assert len(story.broken) == 1
    kinds = {(item.kind, item.tone) for item in story.items}
    expected = {
        ("packet", "hold"), ("bar", "hold"), ("bar", "fsync"), ("bar", "deliver"), ("broken", "broken"),
    }  # fmt: skip
    assert expected <= kinds
    assert [kind for _, kind in story.lanes()] == ["client"] * 2 + ["node"] * 3 + ["client"] * 3
    holders = [
        item
        for item in story.items
        if item.kind == "bar" and item.tone == "deliver" and item.concerns(*named(story))
    ]
    assert len(holders) == 2
    one, two = sorted(holders, key=lambda item: item.at)
    assert one.lane != two.lane
    late = [
        item
        for item in story.items
        if item.text.startswith("HOLD") and item.end and item.end - item.at > 0.06
    ]
    assert late
    arrived = [item for item in story.items if item.kind == "packet" and item.end is not None]
    assert all(item.at < item.end for item in arrived if item.end is not None)


def named(story: Story) -> tuple[str, int]:
    return story.find(story.focus)


def short(story: Story) -> str:
    """Return the message of the violation as people name it, without the nonce of its producer id."""
    producer_id, number = named(story)
    return f"{without_nonce(producer_id)}[{number}]"


def test_one_message_is_followed_in_words(story: Story) -> None:
    lines = list(follow(story, short(story)))
    text = "\n".join(lines)
    for said in (
        "PUBLISH from p0",
        f"has {short(story)[:-1]}…3] on disk",
        "HOLD #",
        f"won {short(story)}",
        f"c2 gets {short(story)}",
        "BROKEN: exclusive",
    ):
        assert said in text, text
    times = [float(line.split()[0]) for line in lines[1:]]
    assert times == sorted(times)
    with pytest.raises(ValueError, match="0 producer ids"):
        list(follow(story, "z.1.1[0]"))
    with pytest.raises(ValueError, match="is no message"):
        list(follow(story, "b.1.1"))


def test_a_history_is_told_without_packets(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    write_rows(path, replay(draw(26), full=True, keep=True).rows)
    story = story_of_history([path])
    assert not story.broken
    assert {"fault", "down", "bar", "packet", "mark"} <= {item.kind for item in story.items}
    calls = [item for item in story.items if item.kind == "packet"]
    assert all(item.at == item.end for item in calls)
    assert any(item.lane.startswith("client:") and item.text == "PUBLISH" for item in calls)
    healed = next(item.at for item in story.items if item.text == "healed")
    assert all(item.end is not None and item.end <= healed for item in story.items if item.kind == "fault")


def test_a_file_that_is_no_history_is_named(tmp_path: Path) -> None:
    (tmp_path / "h.jsonl").write_text("{}\n")
    done = CliRunner().invoke(main, ["diagram", str(tmp_path)])
    assert (done.exit_code, "h.jsonl:1" in done.output) == (74, True)


def test_a_long_story_keeps_the_items_near_the_violation(story: Story) -> None:
    small = Story(story.title, items=list(story.items), broken=story.broken, focus=story.focus)
    small.shown(100)
    assert len(small.items) == 100
    assert all(item in small.items for item in [item for item in story.items if item.concerns(*named(story))])
    assert f"{len(story.items) - 100} of {len(story.items)}" in small.left_out


def test_names_that_people_read() -> None:
    assert without_nonce("a.1.5eed.3") == "a.1.3"
    assert said_ids((("a.1.5eed.3", 0, 1), ("b.1.7.1", 2, 5))) == "a.1.3[0], b.1.1[2…4]"
    assert [ordinal(number) for number in (1, 2, 3, 4, 11, 12, 21, 102)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "21st", "102nd",
    ]  # fmt: skip


def test_foreign_text_is_text() -> None:
    hostile = Story(
        HOSTILE, [HOSTILE], [Item("mark", 0.0, None, f"client:{HOSTILE}", HOSTILE, HOSTILE)], [HOSTILE]
    )
    page = page_of(hostile)
    assert "<img" not in page
    assert page.count("</script>") == 2
    assert "\x00" not in page
    assert "\u202e" not in page


def test_the_command_draws_and_follows(story: Story, tmp_path: Path) -> None:
    schedule, page = tmp_path / "s.json", tmp_path / "s.html"
    schedule.write_text(SHRUNK.to_json())
    of = ["diagram", "--schedule", str(schedule), "--without", RULE]
    done = CliRunner().invoke(main, [*of, "-o", str(page), "--items", "100"])
    assert done.exit_code == 0, done.output
    assert "100 of " in done.output
    assert page.stat().st_size < 200_000
    done = CliRunner().invoke(main, [*of, "--follow", short(story)])
    assert done.exit_code == 0, done.output
    assert f"won {short(story)}" in done.output
    done = CliRunner().invoke(main, [*of, "--follow", "z.1.1[2]"])
    assert done.exit_code != 0
    for wrong in (["diagram"], ["diagram", "--seed", "1", "--without", "nothing-like-it"]):
        assert CliRunner().invoke(main, wrong).exit_code == 2


# --------------------------------------------------------------------------- in a browser

PROBE = """
(() => {
const at = () => ({where: byId('where').textContent, now: byId('now').textContent,
  future: document.querySelectorAll('.it.future').length, drawn: document.querySelectorAll('.it').length,
  list: byId('list').children.length, find: byId('find').value, bars: document.querySelectorAll('.it.bar').length});
const found = [];
const type = (text) => { byId('find').value = text; byId('find').dispatchEvent(new Event('input')); found.push(at()); };
found.push(at());
for (const key of ['Home', 'ArrowRight', 'End', 'ArrowLeft', 'Escape', 'h']) {
  document.body.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true})); found.push(at()); }
type('nothing[0]');
type(FOCUS);
byId('step').value = 3; byId('step').dispatchEvent(new Event('input')); found.push(at());
byId('axis').value = 'true'; byId('axis').dispatchEvent(new Event('change')); found.push(at());
document.querySelector('.it.broken').dispatchEvent(new MouseEvent('click', {bubbles: true})); found.push(at());
const ends = [...document.querySelectorAll('#names div')].map((name) => name.textContent);
return {found, ends, title: document.title, images: document.images.length, wide: document.documentElement.scrollWidth};
})()
"""


def browsed(browser: Browser, page: str, focus: str, folder: Path) -> dict[str, Any]:
    """Return the observations of a browser that works with the page."""
    file = folder / "diagram.html"
    file.write_text(page)
    for width, scheme in ((390, "dark"), (1200, "light")):
        browser.open(file.as_uri(), width, scheme)
        assert browser.pale() == []
    seen: dict[str, Any] = browser.run(PROBE.replace("FOCUS", json.dumps(focus)))
    assert browser.complaints == []
    return seen


def test_a_person_works_with_the_page(story: Story, browser: Browser, tmp_path: Path) -> None:
    seen = browsed(browser, page_of(story), short(story), tmp_path)
    first, home, right, end, left_key, escaped, quiet, nothing, again, slid, true_axis, clicked = seen[
        "found"
    ]
    count = first["list"]
    assert first["find"] == story.focus  # the message that broke a promise is shown first, as far as that
    assert first["now"].endswith(story.broken[0])
    assert first["drawn"] == count < len(story.items)
    assert (home["where"][:4], home["future"]) == ("1 / ", count - 1)
    assert (right["where"][:4], right["future"]) == ("2 / ", count - 2)
    assert (end["future"], left_key["future"], escaped["find"]) == (0, 1, "")
    assert count < escaped["drawn"] < quiet["drawn"] == len(story.items)
    assert nothing["drawn"] == 5  # the run begins, three nodes start, a promise breaks
    assert again["drawn"] == count
    assert slid["where"].startswith("4 / ")
    assert true_axis["drawn"] == count
    assert clicked["now"].endswith(story.broken[0])
    assert seen["ends"] == ["p0", "a", "b", "c", "c1", "c2"]
    assert seen["wide"] <= 1200
    assert seen["title"] == story.title


def test_hostile_text_does_nothing_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    item = Item("mark", 0.0, None, f"client:{HOSTILE}", HOSTILE, HOSTILE, ids=((HOSTILE, 0, 1),))
    broken = Item("broken", 1.0, None, "", HOSTILE, HOSTILE)
    seen = browsed(browser, page_of(Story(HOSTILE, [HOSTILE], [item, broken], [HOSTILE])), HOSTILE, tmp_path)
    assert seen["images"] == 0
    assert seen["title"].startswith("</script>")
