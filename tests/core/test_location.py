"""A data directory that lies elsewhere than at its last start may be an old copy (docs/protocol.md, RECOVERY).

In these clusters a disk is a list object: a copy of the list is a backup that was restored.
"""

from __future__ import annotations

import pytest

from quorumq.core import messages as m
from quorumq.core.messages.effects import LinkUp
from quorumq.core.messages.records import (
    DirectoryLocation,
    JournalRecord,
    PeerPosition,
    Reserved,
    Started,
    Trusted,
    TrustLost,
)
from quorumq.core.recovery.resync import far_above
from quorumq.core.recovery.trust import STARTS_KEPT
from quorumq.core.values.types import Incarnation
from tests.core.cluster import Cluster
from tests.core.network import cut, noted, wipe
from tests.core.steps import check_failed, fetch, outcomes, published, receipts, with_messages


def restore(cluster: Cluster, names: str) -> None:
    """Stop these nodes, and start them from copies of their directories that lack nothing."""
    cluster.kill(names)
    for name in names:
        cluster.journals[name] = list(cluster.journals[name])
    cluster.start(names)


def acked_unknown_to_a(cluster: Cluster) -> list[JournalRecord]:
    """A message is acked by b and start 2 of c, which a has not seen; c's journal from before that start."""
    published(cluster, 1)
    cluster.advance(3.0)
    backup = list(cluster.journals["c"])
    cut(cluster, "ac")
    cluster.crash("c", 6.0)
    cut(cluster, "ac", "ab")
    got = receipts(cluster.ask("b", fetch(hold_time=5.0)))
    assert outcomes(cluster.ask("b", m.AckRequest(got))) == ["acked"]
    cluster.kill("b")
    return backup


def test_an_old_backup_does_not_vote_while_the_one_peer_that_knows_better_is_down() -> None:
    cluster = Cluster(hold_time_max=5.0)
    backup = acked_unknown_to_a(cluster)
    cut(cluster)
    wipe(cluster, "c", 6.0, kept=backup)
    check_failed(
        cluster.ask("a", fetch(hold_time=5.0)), "outcome-unknown", "has not begun"
    )  # c does not vote
    key = cluster.submit("a", fetch(hold_time=5.0, wait=0.4))
    cluster.advance(0.3)
    assert key not in cluster.replies, "a consumer that waits does so"
    cluster.advance(0.2)
    check_failed(cluster.replies[key], "outcome-unknown", "has not begun")
    cluster.start("b")
    assert [name for name, _ in cluster.restarts] == ["c"], "b has told it that it is an old copy"
    cluster.advance(6.0)
    assert cluster.nodes["c"].state.trusted
    assert receipts(cluster.ask("a", fetch(hold_time=5.0))) == ()


def test_a_moved_directory_takes_part_once_every_other_node_answered_and_knows_of_no_more() -> None:
    cluster = with_messages(5, hold_time_max=5.0)
    cluster.advance(3.0)
    cluster.kill("a")
    restore(cluster, "c")
    cluster.advance(6.0)
    core = cluster.nodes["c"]
    assert not core.state.trusted
    answer = cluster.ask("c", m.OpenSession(), of=m.Failed)
    for words in ("copied, or restored", "still missing a.", "empty the directory", "--directory-is-newest"):
        assert words in answer.detail
        assert words in str(core.status(cluster.now)["moved"])
    cluster.start("a", 1.0)
    assert core.state.trusted
    assert isinstance(cluster.ask("c", m.OpenSession()), m.OpenSessionReply)
    assert not cluster.restarts, "nothing was missing, so nothing is resynced"
    status = core.status(cluster.now)
    assert status["moved"] == ""
    assert "none knew of more" in str(status["placed"])
    assert status["placed_by"] == core.state.incarnation.n
    cluster.kill("a")
    cluster.crash("c")
    assert cluster.nodes["c"].state.trusted, "it lies where it did: an ordinary restart"
    assert "none knew of more" in str(cluster.nodes["c"].status(cluster.now)["placed"]), (
        "so it says on the disk"
    )


def test_a_moved_directory_counts_as_moved_after_restarts_and_snapshots() -> None:
    cluster = with_messages(1)
    cluster.kill("a")
    restore(cluster, "c")
    for _ in range(2):
        cluster.crash("c")
        assert cluster.nodes["c"].trust.moved
    cluster.journals["c"][:] = cluster.nodes["c"].snapshot(cluster.now)
    cluster.kill("c")
    cluster.drop = lambda sender, to, message: isinstance(message, m.HoldsRequest)
    cluster.start("c")
    assert cluster.nodes["c"].trust.moved
    cluster.start("a")
    assert cluster.nodes["c"].state.trusted
    assert cluster.nodes["c"].context.quarantine_left(cluster.now) > 0, "it has voted before"


@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_whole_cluster_that_was_restored_comes_up_by_itself_and_says_so(count: int) -> None:
    cluster = Cluster(count, hold_time_max=5.0)
    published(cluster, 5, rf=count)
    cluster.advance(3.0)
    restore(cluster, "".join(cluster.names))
    cluster.advance(6.0)
    for core in cluster.nodes.values():
        assert core.state.trusted
        assert "acked since that was taken is delivered again" in str(core.status(cluster.now)["placed"])
    assert (
        sum(
            item.receipt.span.size for item in receipts(cluster.ask("a", fetch(wait=0.2, hold_time=5.0), 0.3))
        )
        == 5
    )
    assert not cluster.restarts


def test_an_operator_may_say_that_a_moved_directory_is_the_newest() -> None:
    cluster = with_messages(1)
    cluster.kill("a")
    cluster.newest = True
    restore(cluster, "c")
    cluster.newest = False
    assert cluster.nodes["c"].state.trusted
    assert "operator" in str(cluster.nodes["c"].status(cluster.now)["placed"])
    cluster.crash("c")
    assert cluster.nodes["c"].state.trusted, "once is enough"


def test_an_operator_who_is_wrong_is_told_by_whoever_knows_better() -> None:
    cluster = with_messages(1)
    cluster.advance(1.0)
    backup = list(cluster.journals["c"])
    for _ in range(2):
        cluster.crash("c")
    cluster.newest = True
    wipe(cluster, "c", kept=backup)
    assert [name for name, _ in cluster.restarts] == ["c"]
    cluster.advance(2.0)
    assert cluster.nodes["c"].state.trusted


def test_the_holds_of_a_clean_stop_are_not_those_of_a_directory_that_was_moved() -> None:
    """A later start of the directory that this is a copy of may have granted others."""
    cluster = with_messages(1, hold_time_max=5.0)
    cluster.stop("c")
    cluster.journals["c"] = list(cluster.journals["c"])
    cluster.drop = lambda sender, to, message: True
    cluster.start("c")
    assert cluster.nodes["c"].state.trusted
    assert cluster.nodes["c"].context.quarantine_left(cluster.now) > 5.0


def test_a_copy_of_a_directory_that_resyncs_uses_no_start_again() -> None:
    cluster = with_messages(1)
    cluster.drop = lambda sender, to, message: isinstance(message, m.ResyncReply)
    wipe(cluster, "c")
    backup = list(cluster.journals["c"])
    for _ in range(3):
        cluster.crash("c")
    last = cluster.nodes["c"].state.incarnation.n
    cut(cluster, "ac", "bc")
    wipe(cluster, "c", kept=backup)
    core = cluster.nodes["c"]
    assert core.trust.resync is not None
    assert core.state.incarnation.n == far_above(last) + 1
    assert core.trust.covered_up_to == far_above(last)
    cut(cluster)
    cluster.crash("c")
    assert cluster.nodes["c"].state.incarnation.n == far_above(last) + 2, "it lies here now"
    assert cluster.nodes["c"].trust.covered_up_to == far_above(last)
    assert len(cluster.restarts) == 1
    cluster.advance(2.0)
    assert cluster.nodes["c"].state.trusted


def test_a_new_node_that_was_moved_before_it_was_known_is_new() -> None:
    cluster = Cluster()
    cluster.kill("a")
    wipe(cluster, "c")
    cluster.kill("bc")
    for name in "abc":
        cluster.journals[name] = []
    cluster.start("c")
    restore(cluster, "c")
    assert Trusted() not in cluster.journals["c"]
    cluster.start("ab")
    assert cluster.nodes["c"].state.trusted
    assert Trusted() in cluster.journals["c"]


@pytest.mark.parametrize("lost", ["moved", "wiped"])
def test_an_untrusted_node_abstains_from_a_hold_at_once(lost: str) -> None:
    cluster = with_messages(5, hold_time_max=5.0)
    cluster.ask("a", m.AckRequest(receipts(cluster.ask("a", fetch(most=1, hold_time=5.0)))))
    cluster.kill("b")
    cluster.journals["c"] = list(cluster.journals["c"]) if lost == "moved" else []
    cluster.crash("c")
    assert not cluster.nodes["c"].state.trusted
    said = noted(cluster, lambda sender, to, message: sender == "c" and isinstance(message, m.HoldReply))
    answer = cluster.ask("a", fetch(hold_time=5.0))
    assert isinstance(answer, m.FetchReply), "its round was not waited for"
    assert receipts(answer) == ()
    assert said
    assert all(reply.abstained and not reply.granted for reply in said)


def test_normal_operation_writes_its_location_once() -> None:
    cluster = with_messages(10)
    for _ in range(3):
        for name in "abc":
            cluster.crash(name)
        cluster.advance(3.0)
    for name in "abc":
        assert sum(isinstance(record, DirectoryLocation) for record in cluster.journals[name]) == 1
        assert sum(isinstance(record, Started) for record in cluster.journals[name]) == 4
        assert not any(isinstance(record, TrustLost) for record in cluster.journals[name])


@pytest.mark.parametrize("welcome", ["arrives", "is lost"])
def test_an_old_copy_that_is_started_twice_lacks_the_start_that_a_peer_has_seen(welcome: str) -> None:
    """Its own starts have the numbers of those that it lacks: b has seen start 2, and so has a, another one."""
    cluster = Cluster(hold_time_max=5.0)
    backup = acked_unknown_to_a(cluster)
    drop_positions(cluster, "b")
    cut(cluster)
    wipe(cluster, "c", kept=backup)
    assert cluster.nodes["c"].state.incarnation.n == 2
    cluster.crash("c", 6.0)
    if welcome == "is lost":
        cut(cluster, "bc")
        cluster.start("b")
        cluster.ask("b", cluster.nodes["c"].hello(cluster.now))
        cluster.advance(4.0)
        cut(cluster)
        for one, two in ("bc", "cb"):
            cluster.link(one, two)
    else:
        cluster.start("b")
    assert [name for name, _ in cluster.restarts] == ["c"]
    assert "b has seen start 2" in cluster.restarts[0][1]
    cluster.advance(6.0)
    assert cluster.nodes["c"].state.trusted
    assert receipts(cluster.ask("a", fetch(hold_time=5.0))) == (), "it was acked"


def test_records_that_an_old_copy_writes_itself_do_not_make_up_for_those_that_it_lacks() -> None:
    cluster = with_messages(5, hold_time_max=5.0)
    cluster.advance(3.0)
    backup = list(cluster.journals["c"])
    cut(cluster, "ac")
    got = receipts(cluster.ask("b", fetch(most=5, hold_time=5.0)))
    assert outcomes(cluster.ask("b", m.AckRequest(got))) == ["acked"], (
        "by b and c, which says how much it has"
    )
    cluster.advance(6.0)
    had = len(cluster.journals["c"])
    cluster.kill("b")
    cut(cluster)
    wipe(cluster, "c", kept=backup)
    while len(cluster.journals["c"]) <= had:
        cluster.crash("c")
    cluster.start("b")
    assert [name for name, _ in cluster.restarts] == ["c"]
    assert "start 1 of node 'c' told b" in cluster.restarts[0][1]
    cluster.advance(6.0)
    assert receipts(cluster.ask("a", fetch(hold_time=5.0))) == (), "it was acked"


def test_a_peer_that_slept_through_all_starts_that_are_kept_is_believed() -> None:
    cluster = Cluster()
    core = cluster.nodes["b"]
    seen = core.state.incarnation
    cluster.kill("c")
    for n in range(STARTS_KEPT):
        core.trust.note_start(Started(Incarnation(seen.n + 1 + n, n)))
    assert len(core.trust.starts) == STARTS_KEPT
    cluster.feed("b", LinkUp("c", Incarnation(1, 1), 0, (seen,)))
    assert not cluster.restarts


def drop_positions(cluster: Cluster, name: str) -> None:
    """They are written lazily: a crash may lose them."""
    cluster.journals[name][:] = [
        Reserved(0) if isinstance(record, PeerPosition) else record for record in cluster.journals[name]
    ]
