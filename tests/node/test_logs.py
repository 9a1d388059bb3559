"""The log: machine-readable, and no kind of line can drown the others."""

from __future__ import annotations

import contextlib
import io
import json

import pytest

from quorumq.node.logs import LINES_PER_KIND, PERIOD_S, RateLimit, make_log


def test_one_kind_is_limited_the_others_are_not_and_what_was_left_out_is_counted() -> None:
    time = 0.0
    file = io.StringIO()
    limit = RateLimit(lambda: time)
    log = make_log("json", "info", "a", file, limit)
    for index in range(LINES_PER_KIND + 30):
        log.warning("connection_broken", index=index)
        log.error("node_stops", index=index)
        log.debug("not_at_this_level")
    log.info("link_up", peer="b")
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    kinds = [line["event"] for line in lines]
    assert kinds.count("connection_broken") == LINES_PER_KIND
    assert kinds.count("node_stops") == LINES_PER_KIND + 30, "errors are never left out"
    assert (kinds.count("link_up"), kinds.count("not_at_this_level")) == (1, 0)
    assert limit.suppressed == 30
    time = PERIOD_S
    log.warning("connection_broken")
    last = json.loads(file.getvalue().splitlines()[-1])
    assert (last["suppressed_before"], last["node"], last["level"]) == (30, "a", "warning")
    assert last["timestamp"].endswith("Z")


def test_a_log_that_takes_no_more_stops_nothing() -> None:
    with open("/dev/full", "w", buffering=1) as full:
        make_log("json", "info", "a", full).warning("disk_full")
        assert full.write("") == 0
        with contextlib.suppress(OSError):
            full.close()


def test_the_console_form_is_one_line_per_event() -> None:
    file = io.StringIO()
    make_log("console", "info", "a", file).info("link_up", peer="b")
    assert file.getvalue().count("\n") == 1
    assert "link_up" in file.getvalue()


@pytest.mark.parametrize("form", ["console", "json"])
def test_names_of_clients_are_escaped_in_logs(form: str) -> None:
    file = io.StringIO()
    make_log(form, "info", "a", file).warning(
        "connection_broken", client="c\x1b]0;owned\x07", reason="\x1b[1m\x9b1m"
    )
    assert file.getvalue().rstrip("\n").isprintable()
    assert "owned" in file.getvalue()


@pytest.mark.parametrize("form", ["console", "json"])
def test_an_error_has_the_traceback_of_its_exception(form: str) -> None:
    file = io.StringIO()
    log = make_log(form, "info", "a", file)
    try:
        raise ValueError("a\x1bb")
    except ValueError as error:
        log.error("request_failed", request=frozenset(), exc_info=error)
        log.error("request_failed", exc_info=True)
    log.error("request_failed", exc_info=None)
    assert file.getvalue().count(r"ValueError: a\\x1bb" if form == "json" else r"ValueError: a\x1bb") == 2
    assert file.getvalue().count("Traceback") == 2
    assert file.getvalue().count("frozenset()") == 1


def test_the_console_form_quotes_values_with_spaces_or_line_ends() -> None:
    file = io.StringIO()
    make_log("console", "info", "a", file).info("node_stops", reason="a bug\nhere", peer="b", port=1, path="")
    (line,) = file.getvalue().splitlines()
    assert line.endswith(r"node=a reason='a bug\nhere' peer=b port=1 path=''")
