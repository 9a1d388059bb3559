"""The commands against real node processes: publish, consume, peek, dead letters, topics, status, dev, bench."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner

from quorumq.cli.main import main
from quorumq.client import Message, MessageId
from quorumq.client.blocking import connect
from quorumq.core.values.errors import TooLarge, UsageError
from quorumq.core.values.limits import PAYLOAD_BYTES_MAX
from quorumq.lab import dev, local
from quorumq.lab.bench import measure
from quorumq.lab.bench_runs import Degraded
from quorumq.lab.local import LocalCluster, NodeDied, NotReady
from quorumq.lab.ports import free_ports
from tests.cli.shell import QUORUMQ, Shell
from tests.patience import PATIENCE_S, until

pytestmark = pytest.mark.e2e


def test_published_messages_are_consumed_once_and_in_full(shell: Shell) -> None:
    ids = shell("publish orders first 'zweite ü' --key k --header kind=test").out.split()
    assert len(set(ids)) == 2
    got = shell("consume orders --group g --max 2 --json").lines()
    assert [line["payload"] for line in got] == ["first", "zweite ü"]
    assert [line["id"] for line in got] == ids
    assert {line["key"] for line in got} == {"k"}
    assert got[0]["headers"] == {"kind": "test"}
    again = shell("consume orders --group g --wait 0.2")
    assert again.out == ""
    assert "nothing came" in again.err
    states = [line["state"] for line in shell("peek orders --group g --which all --json").lines()]
    assert states == ["acked", "acked"], "not merely held"
    assert shell("consume orders --group other --max 2").out.splitlines() == ["first", "zweite ü"]


def test_files_and_lines_are_published_byte_for_byte(shell: Shell, tmp_path: Path) -> None:
    blob = tmp_path / "blob"
    blob.write_bytes(b"\x00\xff\n\n")
    shell("publish bytes --file", str(blob))
    shell("publish bytes --lines", stdin=b"one\r\n\ntwo")
    got = shell("consume bytes --group g --max 4 --json").lines()
    assert [line["payload_base64"] for line in got if "payload" not in line] == ["AP8KCg=="]
    assert [line["payload"] for line in got if "payload" in line] == ["one", "", "two"]
    assert "lone surrogate" in shell("publish bytes x --key", "\udcff", code=64).err


@pytest.fixture(scope="module")
def patient(shells: Callable[[float], Shell]) -> Shell:
    """A shell on a cluster with holds of a minute."""
    return shells(60.0)


def test_lines_before_one_that_is_too_long_are_named(shell: Shell) -> None:
    """They were stored without a word, and a second run published them twice."""
    lines = b"one\ntwo\n" + b"x" * (PAYLOAD_BYTES_MAX + 1) + b"\nfour\n"
    done = shell("publish long --lines", stdin=lines, code=TooLarge.exit_code)
    assert len(done.out.split()) == 2
    assert "published 2 messages to long" in done.err
    assert sorted(shell("consume long --group g --max 2").out.split()) == ["one", "two"]


def test_consume_takes_messages_by_their_ids_and_says_what_became_of_others(patient: Shell) -> None:
    shell = patient
    ids = shell("publish named a b c d e").out.split()
    take = ("consume", "named", "--group", "g")
    assert shell(*take, "--id", ids[3], "--id", ids[1]).out == "b\nd\n"
    shell(*take, "--id", ids[0], "--no-ack")
    never = ids[0].rpartition("/")[0] + "/99"
    consumed = shell(*take, "--id", ids[0], "--id", ids[1], "--id", ids[2], "--id", never, code=66)
    assert consumed.out == "c\n"
    assert f"{ids[0]} was not delivered to g: it is held for another " in consumed.err
    assert f"{ids[1]} was not delivered to g: it is acked" in consumed.err
    assert f"{never} was not delivered to g: no replica that answered knows it" in consumed.err
    assert shell(*take, "--id", ids[4], "--exec", "cat; exit 0", "--json").lines()[0]["outcome"] == "acked"
    assert "leave out --max and --wait" in shell(*take, "--id", ids[4], "--max", "1", code=2).err


def test_consume_drops_messages_that_it_has_settled(patient: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may run for months: memory that grows by each message would end it."""
    alive: list[int] = []

    def show(message: Message, as_json: bool) -> None:
        alive.append(sum(isinstance(it, Message) or type(it) is MessageId for it in gc.get_objects()))

    patient("publish many --lines", stdin=b"line\n" * 300)
    monkeypatch.setattr("quorumq.cli.consume.BATCH", 20)
    monkeypatch.setattr("quorumq.cli.consume._show", show)
    patient("consume many --group g --max 300")
    assert len(alive) == 300
    assert max(alive) < alive[0] + 200


def test_peek_shows_each_state_and_takes_nothing(patient: Shell) -> None:
    shell = patient
    shell("publish seen a b c d")
    ready = shell("peek seen --group g --json --bodies").lines()
    assert [(line["state"], line["payload"]) for line in ready] == [("ready", text) for text in "abcd"]
    assert "no group 'g'" in shell("peek seen --group g").err
    shell("consume seen --group g --max 1")
    shell("consume seen --group g --max 1 --reject 60")
    shell("consume seen --group g --max 1 --no-ack")
    lines = shell("peek seen --group g --which all --json").lines()
    states = [line["state"] for line in lines]
    (held,) = [line["id"] for line in lines if line["state"] == "held"]
    never = held.rpartition("/")[0] + "/99"
    one = shell(f"peek seen --group g --id {held} --id {never} --json", code=66)
    assert [(line["id"], line["state"]) for line in one.lines()] == [(held, "held")]
    assert one.err == f"quorumq: no replica that answered knows {never}\n"
    assert states == ["acked", "delayed", "held", "ready"]
    assert "there are more" in shell("peek seen --group g --which all --limit 3").err
    assert "delayed  1 failed attempt  for another" in shell("peek seen --group g --which delayed").out


def test_the_life_of_a_message_is_shown(shell: Shell) -> None:
    mid = shell("publish lives a").out.strip()
    shell("consume lives --group g --max 1")
    text = shell(f"show lives {mid}").out
    assert text.startswith(f"{mid}\npublished ")
    assert "\n    a\n" in text, "the payload"
    assert text.count("\n  g: acked · token ") == text.count(": has the payload"), (
        "a block for those that agree"
    )
    assert all(node in text for node in shell.cluster.nodes)
    (life,) = shell(f"show lives {mid} --json").lines()
    assert sorted((replica["node"], replica["payload"]) for replica in life["replicas"]) == [
        (node, True) for node in shell.cluster.nodes
    ]
    assert "not a message id" in shell("show lives x", code=64).err


def test_a_dead_letter_is_shown_with_its_stack_once(shell: Shell) -> None:
    with connect(shell.cluster.addresses) as client:
        message_id = client.publish("deaths", b"x")
        (message,) = client.fetch("deaths", "g", max_wait=10.0)
        try:
            raise ZeroDivisionError("a \x1b[31m text")
        except ZeroDivisionError as error:
            message.dead_letter(error)
    text = shell("show deaths", str(message_id)).out
    assert 1 <= text.count("died of rejected, ") <= 3
    assert " failed attempt · token " in text
    (line,) = shell("deadletters list deaths --group g --each --json").lines()
    assert (line["payload"], line["attempts"]) == ("x", 1)
    assert "  1 failed attempt\n" in shell("deadletters list deaths --group g --each").out
    assert "dead  1 failed attempt  ZeroDivisionError" in shell("peek deaths --group g --which dead").out
    assert text.count("      Traceback (most recent call last):\n") == 1
    assert "in test_a_dead_letter_is_shown_with_its_stack_once\n" in text
    assert text.count("      ZeroDivisionError: a \\x1b[31m text\n") == 1


def test_a_delayed_message_waits_and_an_expired_one_is_a_dead_letter(shell: Shell) -> None:
    began = time.monotonic()
    shell("publish timed never --ttl 0.1")
    shell("publish timed soon --delay 1.5s")
    assert "nobody would ever" in shell("publish timed x --delay 0.2 --ttl 0.1", code=64).err
    time.sleep(0.2)  # the first one has expired
    assert shell("consume timed --group g --max 1").out == "soon\n"
    assert time.monotonic() - began > 1.4
    (death,) = shell("deadletters list timed --group g --each --json").lines()
    assert death["reason"] == "expired"
    assert "366 days" in shell("publish timed x --delay 400d", code=64).err
    assert "above 0" in shell("publish timed x --ttl 0", code=64).err


def test_exec_decides_by_the_exit_code_and_the_dead_letter_says_why(shell: Shell) -> None:
    shell("publish work good bad")
    command = 'read -r text; [ "$text" = good ] || { echo "cannot parse $QUORUMQ_ATTEMPT" >&2; exit 3; }'
    options = ("--group", "g", "--exec", command, "--backoff", "0", "--tries", "2", "--json")
    done = shell("consume work", *options, "--max", "3").lines()
    outcomes = sorted((line["exit_code"], line["attempt"], line["outcome"]) for line in done)
    assert outcomes == [(0, 1, "acked"), (3, 1, "requeued"), (3, 2, "dead_lettered")]

    (kind,) = shell("deadletters list work --group g --json").lines()
    assert kind["count"] == 1
    assert kind["error_class"].endswith("CommandFailed")
    assert "exit code 3" in kind["message"]
    assert "cannot parse 2" in kind["message"]
    (death,) = shell("deadletters list work --group g --each --json").lines()
    assert death["id"] in kind["samples"]
    assert death["attempts"] == 2


def test_a_command_that_the_shell_cannot_run_costs_no_message_an_attempt(shell: Shell) -> None:
    """A mistyped --exec made dead letters of a whole topic within seconds."""
    shell("publish mistyped one")
    refused = shell("consume mistyped --group g --exec ./no-such-program --max 1", code=UsageError.exit_code)
    assert "correct --exec" in refused.err
    (line,) = shell("consume mistyped --group g --max 1 --wait 10 --json").lines()
    assert line["attempt"] == 1


def test_dead_letters_of_one_kind_are_purged(shell: Shell) -> None:
    shell("publish kinds a b c")
    for count, reason in (("2", "no such account 17"), ("1", "timeout")):
        shell(f"consume kinds --group g --max {count} --dead-letter", reason)
    many, one = shell("deadletters list kinds --group g --json").lines()
    purge = ("deadletters", "purge", "kinds", "--group", "g")
    none = shell(*purge, "--error-class", "Nope", "--yes").out
    assert none.startswith(
        "no dead letters to purge with error class Nope: see `quorumq deadletters list kinds"
    )
    asked = shell(*purge, "--fingerprint", many["fingerprint"], stdin=b"n\n", code=1)
    assert "purge 2 dead letters of kinds for g?" in asked.err
    assert shell(*purge, "--fingerprint", many["fingerprint"], "--yes").out == "purged 2 dead letters\n"
    (rest,) = shell("deadletters list kinds --group g --json").lines()
    assert rest["fingerprint"] == one["fingerprint"]


def test_dead_letters_are_listed_by_kind_and_redriven_when_told(shell: Shell) -> None:
    shell("publish sick a b c")
    for count, reason in (("2", "no such account 17"), ("1", "timeout")):
        shell(f"consume sick --group g --max {count} --dead-letter", reason)
    kinds = shell("deadletters list sick --group g --json").lines()
    assert [(kind["count"], kind["message"]) for kind in kinds] == [(2, "no such account 17"), (1, "timeout")]
    assert "no such account 17" in shell("deadletters list sick --group g").out

    assert "--all" in shell("deadletters redrive sick --group g", code=2).err
    refused = shell("deadletters redrive sick --group g --all", stdin=b"n\n", code=1)
    assert "redrive all 3 dead letters" in refused.err
    assert len(shell("peek sick --group g --which dead --json").lines()) == 3

    mine = kinds[0]["samples"][0]
    (line,) = shell(f"deadletters list sick --group g --id {mine} --each --json").lines()
    assert line["id"] == mine
    never = mine.rpartition("/")[0] + "/99"
    both = ("--id", mine, "--id", never)
    dry = shell("deadletters redrive sick --group g", *both, "--dry-run", code=66)
    assert dry.out == "1 dead letter would be redriven\n"
    assert dry.err == f"quorumq: {never} is no dead letter of g: it is not known\n"
    listed = shell("deadletters list sick --group g", *both, "--each", code=66)
    assert listed.out.startswith(f"{mine}\n    20")
    assert never in listed.err
    assert "not a message id: 'x'" in shell("deadletters redrive sick --group g --id x", code=64).err

    ready = shell("publish sick d e").out.split()
    purge = ("purge", "sick", "--group", "g", "--yes")
    gone = shell(*purge, "--id", ready[0], "--id", mine, code=66)
    assert gone.out == "purged 1 message\n"
    assert gone.err == f"quorumq: {mine} is not open for g: it is dead\n"
    assert "purge 1 message of sick for g?" in shell(*purge[:-1], "--id", ready[1], stdin=b"n\n", code=1).err
    assert shell(*purge, "--id", ready[1]).out == "purged 1 message\n"
    deaths = shell("deadletters", *purge, "--id", ready[1], code=66)
    assert deaths.err == f"quorumq: {ready[1]} is no dead letter of g: it is skipped\n"
    assert "leave out --partition" in shell(*purge, "--id", mine, "--partition", "0", code=2).err

    one = shell("deadletters redrive sick --group g --fingerprint", kinds[1]["fingerprint"], "--json").lines()
    assert (one[0]["redriven"], one[0]["already"]) == (1, 0)
    assert shell("deadletters redrive sick --group g --all --yes").out == "redriven 2 messages\n"
    assert shell("deadletters redrive sick --group g --all --yes").out == "no dead letters to redrive\n"
    again = shell(f"deadletters redrive sick --group g --id {mine}", code=66)
    assert again.out == "no dead letters to redrive\n"
    assert again.err == f"quorumq: {mine} is no dead letter of g: it is ready\n"
    assert sorted(shell("consume sick --group g --max 3").out.split()) == ["a", "b", "c"]
    assert "there is no group 'none'" in shell("deadletters list sick --group none").err
    hint = "it has g; did you mean 'g'?\n"
    assert shell("deadletters list sick --group gg").err.endswith(hint)
    assert "did you mean 'g'?\n" in shell("peek sick --group gg").err
    refused = shell("groups describe sick gg", code=66)
    assert "no group 'gg' reads topic 'sick': g does; did you mean 'g'?" in refused.err


def test_topics_are_created_once_and_listed(shell: Shell) -> None:
    (made,) = shell("topics create wide --partitions 4 --max-deliveries 2 --json").lines()
    assert made["partitions"] == 4
    shell("topics create wide --partitions 4")
    assert "max_deliveries = 2, not 3" in shell("topics create wide --max-deliveries 3", code=64).err
    listed = {line["topic"]: line for line in shell("topics list --json").lines()}
    assert listed["wide"]["max_deliveries"] == 2
    assert listed["wide"]["replicas"] == made["replicas"]
    assert "wide" in shell("topics list").out
    assert "rf = 3" in shell("topics create wide --rf 1", code=64).err


def test_partitions_are_no_afterthought_of_a_topic_that_has_messages(shell: Shell) -> None:
    shell("publish grown one --key k")
    refused = shell("topics create grown --partitions 3", code=64)
    assert "topic 'grown' was made by publishing, with 1 partition, and has messages" in refused.err
    shell("topics create grown --max-deliveries 7")
    assert json.loads(shell("topics set grown --partitions 3 --json").out)["partitions"] == 3


def test_settings_change_one_by_one(shell: Shell) -> None:
    (made,) = shell("topics create tuned --ttl 5m --on-expiry drop --backoff 1s,10s --json").lines()
    assert (made["ttl_s"], made["backoff"], made["retention_s"]) == (300.0, [1.0, 10.0], 0.0)
    assert made["on_expiry"] == "drop"
    (now,) = shell("topics set tuned --retention 7d --backoff none --partitions 3 --json").lines()
    changed = {"retention_s": 604800.0, "backoff": [], "partitions": 3, "replicas": now["replicas"]}
    assert now == {**made, **changed}
    assert now["replicas"][:1] == made["replicas"]
    assert "nothing to change" in shell("topics set tuned", code=64).err
    assert "can only become more" in shell("topics set tuned --partitions 2", code=64).err
    assert "no topic 'untuned'" in shell("topics set untuned --ttl 1", code=66).err


def test_a_named_message_is_published_once(shell: Shell) -> None:
    first = shell("publish named bill --dedup invoice-4711 --window 1h").out
    assert shell("publish named bill --dedup invoice-4711 --window 1h").out == first
    shell("publish named other --dedup invoice-4711 --window 1h", code=64)
    assert "names one message" in shell("publish named a b --dedup x", code=2).err


def test_labels_are_shown_after_they_are_changed(shell: Shell) -> None:
    shell("topics create labelled")
    assert "no labels" in shell("topics label labelled").err
    (now,) = shell("topics label labelled owner=billing empty= --json").lines()
    assert now == {"topic": "labelled", "labels": {"empty": "", "owner": "billing"}}
    assert "billing" in shell("topics label labelled --remove empty").out
    assert "empty" not in shell("topics label labelled").out
    assert "'owner' is no label" in shell("topics label labelled owner", code=64).err
    assert "given twice" in shell("topics label labelled a=b --remove a", code=64).err


def test_a_topic_is_deleted_for_good_and_its_name_is_free(shell: Shell) -> None:
    shell("topics create brief --rf 3")
    shell("publish brief one two")
    refused = shell("topics delete brief", stdin=b"n\n", code=1)
    assert "with all messages" in refused.err
    unknown = shell("topics delete brief breif", stdin=b"y\n", code=66)
    assert ("no topic 'breif'" in unknown.err, "[y/N]" in unknown.err) == (True, False), (
        "it does not ask first"
    )
    (gone,) = shell("topics delete brief --yes --json").lines()
    assert "was deleted" in shell("topics delete brief --yes", code=66).err
    assert "was deleted" in shell("consume brief --group g --wait 0.2", code=66).err
    assert "brief" not in [line["topic"] for line in shell("topics list --json").lines()]
    (again,) = shell("topics create brief --rf 1 --json").lines()
    assert again["id"] != gone["id"]
    shell("publish brief three")
    assert shell("consume brief --group g --max 1").out.split() == ["three"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("consume", "nowhere", "--group", "g"), 66, "'nowhere'"),
        (("peek", "nowhere", "--group", "g"), 66, "'nowhere'"),
        (("deadletters", "list", "nowhere", "--group", "g"), 66, "'nowhere'"),
        (("publish", "errors", "x", "--partition", "9"), 66, "9"),
        (("consume", "errors", "--group", "g", "--hold-time", "99"), 64, "99"),
        (("publish", "errors", "x" * (1 + (1 << 20))), 64, "1048576"),
    ],
)
def test_impossible_values_are_refused_by_name(
    shell: Shell, arguments: tuple[str, ...], code: int, said: str
) -> None:
    shell("publish errors x")
    err = shell(*arguments, code=code).err
    assert err.startswith("quorumq: ")
    assert said in err
    assert "Traceback" not in err


def test_status_counts_what_is_ready_held_dead_and_done(patient: Shell) -> None:
    shell = patient
    shell("publish counted", *(str(number) for number in range(6)))
    shell("consume counted --group g --max 2")
    shell("consume counted --group g --max 1 --dead-letter no")
    shell("consume counted --group g --max 1 --no-ack")
    expected = {"ready": 2, "held": 1, "dead": 1, "done": 2}
    status: dict[str, Any] = {}
    topic: dict[str, Any] = {}

    def is_told() -> bool:  # a replica that was not in the majority may be a moment behind
        status.update(json.loads(shell("status --json").out))
        topic.update(*[topic for topic in status["topics"] if topic["topic"] == "counted"])
        return bool(topic["groups"]["g"] == expected)

    until(is_told, lambda: topic)
    assert topic["messages"] == 6
    assert [node["node"] for node in status["nodes"]] == ["n1", "n2", "n3"]
    assert all(node["up"] for node in status["nodes"])
    one = {"QUORUMQ_NODES": shell.cluster.addresses[1]}
    result = CliRunner().invoke(main, ["status"], env=one)
    assert all(address in result.stdout for address in shell.cluster.addresses), (
        "one node tells of the others"
    )


def test_nodes_that_are_down_are_named_and_without_a_majority_nothing_is_delivered(shell: Shell) -> None:
    mid = shell("publish outage before left").out.split()[0]
    shell("consume outage --group g --max 1")
    shell.cluster.kill("n3")
    try:
        out = shell("status").out
        assert "down" in out
        assert "n3 is down" in out
        shell("publish outage 'with two of three'")
        assert "n3: no answer" in shell(f"show outage {mid} --timeout 1").out
        never = mid.rpartition("/")[0] + "/99"
        unknown = shell(f"show outage {never} --timeout 1", code=75)
        assert "n3 did not answer and may have it" in unknown.err
        assert shell("consume outage --group g --max 1").out

        shell.cluster.kill("n2")
        assert "only 1 of 3 nodes answer" in shell("status").out
        assert "replicas" in shell("publish outage x --timeout 2", code=75).err
        # There is a message that cannot be held: not the same as nothing.
        nothing = shell("consume outage --group g --wait 0.1", code=75)
        assert (nothing.out, "nothing came" in nothing.err) == ("", False)
    finally:
        shell.cluster.start("n2")
        shell.cluster.start("n3")
    status = json.loads(shell("status --json").out)
    (node,) = [node for node in status["nodes"] if node["node"] == "n3"]
    assert node["incarnation"] == 2
    assert 0 <= node["quarantine_s"] <= 2.04, "on a slow machine it is over before anybody asks"
    shell.cluster.wait_ready(quarantine=True)
    assert shell("consume outage --group g --max 1").out
    until(
        lambda: "n3" not in str(json.loads(shell("status --json").out)["problems"]),
        "n3 is no problem any more",
    )


@pytest.mark.parametrize(
    "kind",
    [
        "drain", "latency", "fanout", "backlog", pytest.param("stream", marks=pytest.mark.soak),
        pytest.param("fanin", marks=pytest.mark.soak),
    ],
)  # fmt: skip
def test_a_tiny_benchmark_is_verified(shell: Shell, kind: str) -> None:
    nodes = [part for address in shell.cluster.addresses for part in ("--node", address)]
    options = "--messages 60 --warm-up 5 --size 100 --hold-time 2 --partitions 2"
    more = {
        "drain": "--producers 2 --consumers 2",
        "fanin": "--connections 5",
        "fanout": "--groups 2",
        "backlog": "--single",
    }.get(kind, "")
    result = json.loads(shell(f"bench {kind} {options} {more} --json", *nodes).out)
    assert result["verified"] is True
    assert result["messages"] == 60
    assert sum(result["outcomes"].values()) == 60 * result.get("groups", 1)
    assert result["machine"]["cores"] >= 1
    if kind in ("latency", "fanin"):
        assert result["publish_ms"]["count"] == 60
        assert 0 < result["publish_ms"]["p50"] <= result["publish_ms"]["p99"] <= result["publish_ms"]["max"]
    if kind == "backlog":
        assert [len(rates) for rates in result["tenths"].values()] == [10, 10]
        assert not {"cpu_tenths", "restart_s"} & result.keys(), "of nodes of somebody else"


def test_a_benchmark_with_a_node_that_dies_goes_on_and_loses_nothing(shell: Shell) -> None:
    options = {
        "messages": 300,
        "size": 1024,
        "partitions": 1,
        "warm_up": 0,
        "hold_time": 2.0,
        "as_json": True,
    }
    result = measure(Degraded, options, shell.cluster)
    assert not shell.cluster.running("n3")
    assert sum(result["outcomes"].values()) >= 300
    assert result["verified"] is True
    shell.cluster.start_all()


# ------------------------------------------------------------------------- LocalCluster, dev


def test_a_cluster_of_one_is_stopped_cleanly_continued_and_gone(tmp_path: Path) -> None:
    with LocalCluster(1, keep=tmp_path, settings={"cluster_id": "mine"}) as cluster:
        shell = Shell(cluster)
        shell("topics create solo --rf 1")
        shell("publish solo kept")
        assert cluster.terminate("n1") == 0
        cluster.start("n1")
        assert cluster.status("n1")["quarantine_s"] == 0, "a clean stop costs no quarantine"
        pid = cluster.pid("n1")
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(UsageError, match="ask for 1 nodes"):
        LocalCluster(3, keep=tmp_path)

    async def in_trio() -> list[str]:
        async with LocalCluster(1, keep=tmp_path) as again:
            look = ("peek", "solo", "--group", "g", "--bodies", "--json")
            return (await trio.to_thread.run_sync(lambda: Shell(again)(*look))).out.splitlines()

    # Clean stops in between, so the message is there at once.
    (line,) = trio.run(in_trio)
    assert json.loads(line)["payload"] == "kept"


def test_a_node_that_dies_is_reported_with_the_end_of_its_log() -> None:
    cluster = LocalCluster(1, settings={"no_such_key": 1})
    with pytest.raises(NodeDied) as caught, cluster:
        pass
    assert "exit code 78" in str(caught.value)
    assert "no_such_key" in str(caught.value)
    assert not cluster.directory.exists()


def test_a_node_that_is_paused_is_not_ready() -> None:
    with LocalCluster(1) as cluster:
        cluster.pause("n1")
        with pytest.raises(NotReady, match="n1 does not answer"):
            cluster.wait_ready(["n1"], timeout=0.1)
        cluster.resume("n1")
        cluster.wait_ready(["n1"])


def test_whoever_waits_for_a_start_is_told_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "TELL_EVERY_S", 0.0)
    lines: list[str] = []
    with LocalCluster(1, tell=lines.append):
        assert lines[0] == "waiting: node n1 does not answer"


def test_a_node_that_somebody_else_stopped_ends_cleanly_with_its_cluster() -> None:
    with LocalCluster(1) as cluster:
        pid = cluster.pid("n1")
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
    assert cluster.exit_code("n1") == 0


def test_dev_prints_where_it_is_and_stops_everything_on_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    command = [*QUORUMQ, "dev"]
    options = ["--nodes", "1", "--port", str(port), "--topic", "jobs", "--json"]
    monkeypatch.setattr(local, "TELL_EVERY_S", 0.0)
    early = CliRunner().invoke(main, ["dev", *options, "--wait", "0.1"])
    assert early.exit_code == 69
    assert f"waiting: n1 at 127.0.0.1:{port} does not answer" in early.stderr
    assert f"n1 at 127.0.0.1:{port} does not answer" in early.output
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as dev:
        try:
            ready = CliRunner().invoke(main, ["dev", *options, "--wait"])
            assert json.loads(ready.stdout) == {"ready": True, "addresses": [f"127.0.0.1:{port}"]}
            assert dev.stdout is not None
            said = json.loads(dev.stdout.readline())
            assert said["addresses"] == {"n1": f"127.0.0.1:{port}"}
            result = CliRunner().invoke(main, ["topics", "list", "--json", "--node", said["addresses"]["n1"]])
            assert json.loads(result.stdout)["topic"] == "jobs"
            bench = ["bench", "drain", "--messages", "60", "--warm-up", "5", "--json", "--node"]
            result = CliRunner().invoke(main, [*bench, said["addresses"]["n1"]])
            assert json.loads(result.stdout)["verified"], (
                "its topics have as many replicas as there are nodes for"
            )
        finally:
            dev.send_signal(signal.SIGTERM)
        assert dev.wait(PATIENCE_S) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(said["pids"]["n1"], 0)
    assert not Path(said["directory"]).exists()


def test_dev_continues_a_cluster_with_its_own_longest_hold(tmp_path: Path) -> None:
    with LocalCluster(1, keep=tmp_path, hold_time_max=2.0) as cluster:  # as the demo leaves one
        CliRunner().invoke(main, ["publish", "jobs", "kept", "--node", cluster.addresses[0]])
    (port,) = free_ports(1)
    options = ["--nodes", "1", "--port", str(port)]
    with subprocess.Popen([*QUORUMQ, "dev", *options, "--dir", str(tmp_path)]) as started:
        try:
            ready = CliRunner().invoke(main, ["dev", *options, "--wait", str(PATIENCE_S)])
            assert ready.exit_code == 0, ready.output
            with connect(f"127.0.0.1:{port}") as client:
                (message,) = client.fetch("jobs", "workers", max_wait=PATIENCE_S)
                assert message.payload == b"kept"
        finally:
            started.send_signal(signal.SIGTERM)
    assert started.returncode == 0


def test_dev_refuses_a_directory_in_which_a_cluster_runs(tmp_path: Path) -> None:
    with LocalCluster(1, keep=tmp_path) as cluster:
        before = cluster.config_path("n1").read_bytes()
        port, _ = free_ports(2)
        done = CliRunner().invoke(main, ["dev", "--nodes", "1", "--port", str(port), "--dir", str(tmp_path)])
        assert done.exit_code == 74, done.output
        assert f"{cluster.data_path('n1')} is in use by another quorumq process" in done.output
        assert cluster.config_path("n1").read_bytes() == before


def test_dev_keeps_the_logs_of_a_failed_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    begin = LocalCluster.start_all

    def start_all(cluster: LocalCluster) -> None:
        with cluster.config_path("n1").open("r+") as file:  # a key that no node knows
            text = file.read()
            file.seek(0)
            file.write("no_such_key = 1\n" + text)
        begin(cluster)

    monkeypatch.setattr(LocalCluster, "start_all", start_all)
    done = CliRunner().invoke(main, ["dev", "--nodes", "1", "--port", str(free_ports(1)[0])])
    (directory,) = tmp_path.glob("quorumq-*")
    assert done.exit_code == 70
    assert done.output.endswith(f"the nodes' logs are kept: {directory}/n*/node.log\n")
    assert "no_such_key" in (directory / "n1" / "node.log").read_text()


def test_dev_names_the_log_of_a_node_that_ended_by_itself_and_not_of_one_that_was_killed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended:
        nodes = ("n1", "n2")

        def running(self, name: str) -> bool:
            return False

        def exit_code(self, name: str) -> int:
            return 74 if name == "n1" else -signal.SIGKILL

        def log_path(self, name: str) -> Path:
            return Path(f"/logs/{name}/node.log")

    rounds = iter(range(2))
    monkeypatch.setattr(dev.time, "sleep", lambda seconds: next(rounds))
    died: dict[str, None] = {}
    with pytest.raises(StopIteration):
        dev._watch(Ended(), died, as_json=False)
    assert list(died) == ["n1"]
    assert capsys.readouterr().err == (
        "n1 has ended with exit code 74, see /logs/n1/node.log; 0 of 2 nodes run\n"
        "n2 has ended; 0 of 2 nodes run\n"
    )


@pytest.mark.parametrize("installed", [False, True])
def test_dev_names_the_extra_of_the_gateway_only_if_it_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    class Cluster:
        nodes = addresses = ()
        directory = Path("/cluster")

    monkeypatch.setattr(dev.gateways, "is_installed", lambda: installed)
    dev._announce(Cluster(), (), None, as_json=False, url="")  # as with --no-gateway
    assert ("pip install" in capsys.readouterr().out) is not installed
