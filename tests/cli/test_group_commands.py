"""`quorumq groups`, `purge`, `peek --complete`, and dead letters as a queue, against real node processes."""

from __future__ import annotations

import io
import signal
import subprocess
import time

import pytest
from rich.markup import escape

from quorumq.cli.common import console, table
from quorumq.client.blocking import connect
from quorumq.client.transport.protocol import SOFTWARE
from quorumq.core.values.errors import UsageError
from tests.cli.shell import QUORUMQ, Shell
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.e2e

HOLD_S = 3.0
"""Not that of test_cluster_commands.py, which kills nodes: their stamps are ahead of the time afterwards."""


def publish(shell: Shell, topic: str, count: int) -> None:
    # Messages that all groups have acked stay, to be read again and listed.
    shell(f"topics create {topic} --retention 1h")
    shell(f"publish {topic} --lines", stdin="".join(f"{number}\n" for number in range(count)).encode())


def die(shell: Shell, topic: str, count: int, reason: str = "no") -> None:
    shell(f"consume {topic} --group g --max {count} --dead-letter", reason)


def test_groups_are_created_rewound_and_listed(shell: Shell) -> None:
    publish(shell, "read", 3)
    began = time.time()
    (new,) = shell("groups create read new --from latest --json").lines()
    assert (new["from_ms"], new["latest"]) == (0, True)
    assert began - 10 < new["since_ms"] / 1000 < time.time() + 10
    assert "begins with the oldest message" in shell("groups create read old").out
    publish(shell, "read", 2)
    assert sorted(shell("consume read --group new --max 2").out.split()) == ["0", "1"]
    assert shell("consume read --group new --wait 0.2").out == ""
    assert sorted(shell("consume read --group old --max 5").out.split()) == list("00112")
    lines = {line["group"]: line for line in shell("groups list read --json").lines()}
    assert set(lines) == {"new", "old"}
    assert (lines["old"]["generation"], lines["old"]["since_ms"]) == (0, None)
    assert "the oldest message" in shell("groups list").out

    (moved,) = shell("groups rewind read old --to 1h --json").lines()
    assert moved["generation"] > 0
    assert sorted(shell("consume read --group old --max 5").out.split()) == list("00112")
    refused = shell("groups rewind read old --to 2099-01-01T00:00", code=UsageError.exit_code)
    assert "ahead: a group would skip all that is published until then" in refused.err
    shell("groups rewind read old --to 0s")
    assert shell("consume read --group old --wait 0.2").out == ""
    assert shell.states("read", "old") == {"acked": 5}, "what is before the beginning stands as it was"
    assert shell("groups rewind read old --to earliest").err == ""
    assert shell.states("read", "old") == {"ready": 5}


def test_backlogs_counts_and_a_search_say_what_there_is_and_change_nothing(shell: Shell) -> None:
    publish(shell, "counted", 6)
    shell("groups create counted g")
    die(shell, "counted", 2)
    shell("consume counted --group g --max 1")
    (line,) = shell("groups backlog counted --json").lines()
    assert [line[name] for name in ("ready", "dead", "answered")] == [3, 2, True]
    assert "counted" in shell("groups backlog").out
    (kind,) = shell("deadletters count counted --group g --json").lines()
    assert (kind["messages"], kind["message"]) == (2, "no")
    assert "2" in shell("deadletters count counted --group g").out
    assert (
        "no dead letters: there is no group 'h' of 'counted', it has g"
        in shell("deadletters count counted --group h").err
    )
    dry = shell("groups rewind counted g --to earliest --dry-run --json").lines()[0]
    assert (dry["messages"], dry["states"]) == (6, {"acked": 1, "dead": 2, "ready": 3})
    search = shell("peek counted --group g --text 4 --json")
    assert [line["payload"] for line in search.lines()] == ["4"]
    assert "looked at 6 of 6" in search.err
    assert [line["ready"] for line in shell("groups backlog counted --json").lines()] == [3]


def test_a_group_is_deleted_for_good_until_it_is_created_again(shell: Shell) -> None:
    publish(shell, "typo", 2)
    shell("consume typo --group mian --max 1")
    refused = shell("groups delete typo mian", stdin=b"n\n", code=1)
    assert "delete mian of typo" in refused.err
    unknown = shell("groups delete typo mian main", stdin=b"y\n", code=66)
    assert ("no group 'main'" in unknown.err, "[y/N]" in unknown.err) == (True, False), (
        "it does not ask first"
    )
    assert "'GROUP...'" in shell("groups delete typo --yes", code=2).err
    assert "extra argument" in shell("groups describe typo mian main", code=2).err
    assert "mian of typo: deleted" in shell("groups delete typo mian --yes").out
    assert shell("groups list typo --json").lines() == []
    assert "was deleted" in shell("consume typo --group mian --wait 0.2", code=66).err
    assert "no group 'main'" in shell("groups delete typo main --yes", code=66).err
    (again,) = shell("groups delete typo mian --yes --json").lines()
    assert again["deleted"]
    assert len(shell("groups create typo mian other").out.splitlines()) == 2
    assert sorted(shell("consume typo --group mian --max 2").out.split()) == ["0", "1"]


def test_describe_shows_what_a_group_has_still_to_do(shell: Shell) -> None:
    publish(shell, "todo", 4)
    shell("consume todo --group g --max 1")
    die(shell, "todo", 1)
    (group,) = shell("groups describe todo g --json").lines()
    assert (group["ready"], group["dead"], len(group["partitions"])) == (2, 1, 1)
    assert group["oldest"] >= 0
    assert (group["delivered"], group["settled"]) == (2, 2), "one was acked, one died"
    (reader,) = group["consumers"]
    assert (reader["delivered"], reader["address"]) == (2, "127.0.0.1")
    assert reader["software"] == SOFTWARE
    assert group["partitions"][0]["consumers"] == group["consumers"]
    table = shell("groups describe todo g").out
    assert all(heading in table for heading in ("delivered/s", "read by", "machine"))
    assert "oldest" in table
    assert max(map(len, table.splitlines())) <= 80
    assert "no group 'h'" in shell("groups describe todo h", code=66).err
    (topic,) = [line for line in shell("status --json").lines()[0]["topics"] if line["topic"] == "todo"]
    assert topic["kept_by"] == "g"


def test_consuming_from_latest_begins_now(shell: Shell) -> None:
    publish(shell, "late", 3)
    assert shell("consume late --group g --from latest --wait 0.2").out == ""
    publish(shell, "late", 1)
    assert shell("consume late --group g --max 1").out == "0\n"
    assert shell("consume late --group g --wait 0.2").out == ""


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("groups", "rewind", "known", "other", "--to", "latest"), 66, "g does"),
        (("groups", "rewind", "nowhere", "g", "--to", "latest"), 66, "'nowhere'"),
        (("groups", "create", "nowhere", "g"), 66, "'nowhere'"),
        (("groups", "create", "known", "g!dead"), 64, "dead letters"),
        (("groups", "rewind", "known", "g", "--to", "yesterday"), 2, "how long"),
        (("purge", "known", "--group", "gg", "--yes"), 66, "g do"),
        (("purge", "known", "--group", "g", "--partition", "7", "--yes"), 66, "7"),
        (("peek", "known", "--group", "g", "--complete", "--bodies"), 2, "--bodies"),
        (("consume", "known.deadletters", "known", "--group", "g"), 64, "together"),
        (("consume", "known.deadletters", "--group", "gg"), 66, "gg"),
        (("deadletters", "redrive", "known", "--group", "g", "--all", "--rate", "0"), 2, "--rate"),
        (("deadletters", "redrive", "known", "--group", "gg", "--all", "--yes"), 66, "g does"),
        (("deadletters", "purge", "known", "--group", "gg", "--reason", "x", "--yes"), 66, "g does"),
    ],
)
def test_impossible_requests_are_refused(
    shell: Shell, arguments: tuple[str, ...], code: int, said: str
) -> None:
    shell("publish known x")
    shell("groups create known g")
    done = shell(*arguments, code=code)
    assert said in " ".join(done.err.split())


def test_purge_asks_and_settles_one_group_s_backlog(shell: Shell) -> None:
    publish(shell, "full", 5)
    shell("groups create full h")
    shell("consume full --group g --max 1")
    die(shell, "full", 1)
    missing = shell("purge full --group gg", stdin=b"n\n", code=66)
    assert "no group 'gg' reads topic 'full'" in missing.err
    assert "purge" not in missing.err.replace("quorumq purge", "")
    refused = shell("purge full --group g", stdin=b"n\n", code=1)
    assert "purge 3 messages of full for g?" in refused.err
    (done,) = shell("purge full --group g --yes --json").lines()
    assert done == {"topic": "full", "group": "g", "purged": 3}
    assert shell.states("full") == {"acked": 1, "dead": 1, "skipped": 3}
    assert shell.states("full", "h") == {"ready": 5}
    refused = shell("deadletters purge full --group g", stdin=b"n\n", code=1)
    assert "purge 1 dead letter of full for g?" in refused.err
    assert shell("deadletters purge full --group g --yes").out == "purged 1 dead letter\n"
    assert shell.states("full") == {"acked": 1, "purged": 1, "skipped": 3}
    assert shell("purge full.deadletters --group g --yes").out == "purged 0 dead letters\n"


def test_a_group_is_limited_and_the_limit_ends(shell: Shell) -> None:
    shell("publish slow one two three")
    shell("groups create slow g")
    assert (
        "g of slow: at most 0.5 a second, 1 message at once"
        in shell("groups limit slow g --per-second 0.5").out
    )
    assert "at most 0.5 a second" in shell("groups describe slow g").out
    (listed,) = shell("groups list slow --json").lines()
    assert listed["limit"] == {"per_second": 0.5, "burst": 1}
    assert "0.5 a second" in shell("groups list slow").out
    (described,) = shell("groups describe slow g --json").lines()
    assert described["limit"] == {"per_second": 0.5, "burst": 1}
    for wrong in ("", "--per-second 1 --off", "--off --burst 2", "--per-second 1 --burst 0"):
        assert shell(f"groups limit slow g {wrong}", code=2).err
    assert "-1" in shell("groups limit slow g --per-second -1", code=64).err
    assert shell("groups limit slow g --off --json").lines()[0]["limit"] is None
    assert len(shell("consume slow --group g --max 3").out.split()) == 3
    assert "nobody" in shell("groups limit slow nobody --off", code=66).err


def test_a_group_is_paused_and_resumed(shell: Shell) -> None:
    shell("publish halted one")
    shell("groups create halted g")
    assert "g of halted: paused" in shell("groups pause halted g").out
    assert "paused until `quorumq groups resume halted g`" in shell("consume halted --group g --wait 0.2").err
    assert "groups resume halted g" in shell("groups describe halted g").out
    assert "is paused" in shell("status").out
    (listed,) = shell("groups list halted --json").lines()
    assert listed["paused"] is True
    assert "paused" in shell("groups list halted").out
    assert shell("groups resume halted g --json").lines()[0]["paused"] is False
    assert shell("consume halted --group g --max 1").out.split() == ["one"]
    assert "nobody" in shell("groups pause halted nobody", code=66).err
    assert "halted has no retention" in shell("groups rewind halted g --to earliest").err
    assert (
        shell("groups rewind halted g --to latest").out
        == "g of halted goes on with what is published from now on\n"
    )


@pytest.mark.parametrize(("topic", "group"), [("queue", "g!dead"), ("queue.deadletters", "g")])
def test_dead_letters_are_consumed_with_their_reasons(shell: Shell, topic: str, group: str) -> None:
    publish(shell, "queue", 3)
    die(shell, "queue", 3, "the printer is on fire")
    command = '[ "$(cat)" = 1 ]'
    options = "--max 3 --tries 1 --backoff 60 --json"
    lines = shell(f"consume {topic} --group {group} {options} --exec", command).lines()
    assert sorted(line["outcome"] for line in lines) == ["acked", "requeued", "requeued"]
    assert len(shell(f"peek {topic} --group {group} --which delayed --json").lines()) == 2
    assert shell(f"consume {topic} --group {group} --wait 0.2").out == ""
    (kind,) = shell(f"deadletters list {topic} --group {group} --json").lines()
    assert (kind["count"], kind["message"]) == (2, "the printer is on fire")
    assert "dead letter already" in shell(
        "consume", *unread(shell), "--max", "1", "--dead-letter", "again", code=64
    ).err  # fmt: skip
    shell(f"deadletters purge {topic} --group {group} --yes")
    assert shell.states("queue")["purged"] in (3, 6)


def unread(shell: Shell) -> tuple[str, ...]:
    """The dead letters of a separate topic. The first has an error."""
    publish(shell, "unread", 1)
    die(shell, "unread", 1, "no paper")
    (line,) = shell("consume unread --group g!dead --max 1 --reject 0 --json").lines()
    assert (line["death"]["message"], line["death"]["reason"]) == ("no paper", "rejected")
    return ("unread.deadletters", "--group", "g")


def test_a_dry_run_redrives_nothing_and_a_limit_takes_the_oldest(shell: Shell) -> None:
    publish(shell, "many", 30)
    die(shell, "many", 30)
    redrive = ("deadletters", "redrive", "many", "--group", "g")
    (would,) = shell(*redrive, "--all", "--dry-run", "--json").lines()
    assert (would["chosen"], would["dry_run"]) == (30, True)
    assert "10 dead letters would be" in shell(*redrive, "--limit", "10", "--dry-run").out
    assert shell.states("many") == {"dead": 30}
    began = time.monotonic()
    assert shell(*redrive, "--limit", "10", "--rate", "20").out == "redriven 10 messages\n"
    assert time.monotonic() - began > 0.35
    assert sorted(map(int, shell("consume many --group g --max 10").out.split())) == list(range(10))
    assert shell.states("many") == {"acked": 10, "dead": 20}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_redrive_that_is_killed_and_run_again_adds_nothing(shell: Shell, how: signal.Signals) -> None:
    topic = f"halfway-{how.name.lower()}"
    publish(shell, topic, 60)
    die(shell, topic, 60)
    options = ("deadletters", "redrive", topic, "--group", "g", "--all", "--yes", "--rate", "4")
    with subprocess.Popen(
        [*QUORUMQ, *options], env=shell.environ, stderr=subprocess.PIPE, text=True
    ) as first:
        while shell.states(topic).get("ready", 0) < 5:
            assert first.poll() is None
        first.send_signal(how)
        assert first.wait(PATIENCE_S) == (-9 if how is signal.SIGKILL else 130)
        assert first.stderr is not None
        assert ("run it again" in first.stderr.read()) == (how is signal.SIGINT)
    before = shell.states(topic)
    assert 0 < before["ready"] < 60
    (done,) = shell(f"deadletters redrive {topic} --group g --all --yes --json").lines()
    assert done["redriven"] == before["dead"]
    assert shell.states(topic) == {"ready": 60}
    got = shell(f"consume {topic} --group g --max 60").out.split()
    assert sorted(map(int, got)) == list(range(60)), "each once"
    assert shell(f"consume {topic} --group g --wait 0.2").out == ""


ESC = "\x1b]0;owned\x07\x9b31m\u202e"


def test_no_text_of_others_reaches_the_terminal_as_it_is(shell: Shell) -> None:
    with connect(shell.cluster.addresses) as client:
        for number in range(2):
            client.publish("evil", f"{number}{ESC}".encode(), key=f"k{ESC}", headers={f"h{ESC}": f"v{ESC}"})
        with client.consumer("evil", "g", name=f"c{ESC}") as consumer:
            message = next(iter(consumer))
            try:
                raise type(f"E{ESC}", (Exception,), {})(f"no{ESC}")
            except Exception as error:
                message.dead_letter(error)
    refused = shell("groups create evil", f"g{ESC}", code=64)
    assert "must be printable" in refused.err
    shown = [
        shell("peek evil --group g --which all"),
        shell("peek evil --group g --which all --json"),
        shell("deadletters list evil --group g"),
        shell("deadletters list evil --group g --each"),
        shell("deadletters list evil --group g --each --json"),
        shell("show evil", str(message.id)),
        shell("show evil", str(message.id), "--json"),
        shell("groups list"),
        shell("groups describe evil g"),
        shell("status"),
        shell("status --json"),
        shell("consume evil --group g --max 1 --json"),
        shell("show evil", f"{message.id}{ESC}", code=64),
        shell("consume", f"evil{ESC}", "--group", "g", "--max", "1", "--wait", "0", code=66),
    ]
    for done in shown:
        for line in (done.out + done.err).splitlines():
            assert line.isprintable(), line
    assert sum("owned" in done.out + done.err for done in shown) > 8, "it is shown, and not obeyed"


def test_a_console_shows_what_a_terminal_would_obey() -> None:
    out = io.StringIO()
    screen = console()
    screen.file, screen.width = out, 60
    rich_table = table(f"t{ESC}")
    rich_table.add_column(f"c{ESC}")
    rich_table.add_row(f"x{ESC}")
    screen.print(rich_table, f"y{ESC}", escape(f"z{ESC}"))
    assert out.getvalue().replace("\n", "").isprintable()
    assert "\\x1b]0;owned" in out.getvalue()
