"""Files of a running gateway that its operator renews: keys, and authorities of the nodes' certificates."""

from __future__ import annotations

import base64
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from quorumq.gateway import gateway
from quorumq.gateway.accesskeys import new_keys_file, read_keys, secret_access_key
from quorumq.gateway.console.session import Sessions
from quorumq.gateway.identity import User
from quorumq.gateway.settings import Settings
from tests.gateway.guarded import ENTRIES, guarded
from tests.gateway.sdk import Sdk
from tests.node.certificates import Files

LOOKS_S = 3 * gateway.REREAD_S
"""Seconds after which a changed file counts: it is looked at twice."""


async def test_renewed_keys_count_without_a_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A gateway read its file of keys once: a key that had leaked was good until a restart of each gateway."""
    caplog.set_level(logging.INFO)
    new_keys_file(tmp_path / "new.keys")
    (new,) = read_keys(tmp_path / "new.keys")
    async with guarded(tmp_path) as it:
        path, (old,) = tmp_path / "gateway.keys", it.keys
        sessions = Sessions(it.gateway.identities.keys)
        cookie = sessions.cookie_of(sessions.begin("shop", 0.0))

        async def statuses() -> list[int]:
            secrets = [secret_access_key(key, "shop", ENTRIES["shop"].token) for key in (old, new)]
            await trio.sleep(LOOKS_S)
            answers = [await Sdk(it.app, "shop", secret).ask("ListQueues") for secret in secrets]
            return [answer.status for answer in answers]

        assert await statuses() == [200, 403]
        path.write_text("".join(base64.urlsafe_b64encode(key).decode() + "\n" for key in (new, old)))
        assert await statuses() == [200, 200]
        assert sessions.read(cookie, 1.0) is not None
        path.write_text("no key\n")
        assert await statuses() == [200, 200]
        path.write_bytes((tmp_path / "new.keys").read_bytes())
        assert await statuses() == [403, 200]
        assert sessions.read(cookie, 1.0) is None
    events = [record.getMessage() for record in caplog.records if record.name == "quorumq.gateway"]
    names = [text.partition(" ")[0] for text in events if text.startswith("keys_file")]
    assert names == ["keys_file_read", "keys_file_ignored", "keys_file_read"]


def test_a_file_of_keys_is_durable_before_its_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut could take the file's name, and each secret that was derived from it."""
    durable: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: durable.append(os.fstat(file).st_ino))
    new_keys_file(path := tmp_path / "gateway.keys")
    assert durable == [path.stat().st_ino, tmp_path.stat().st_ino]


async def test_all_users_of_a_gateway_have_one_look_at_the_authorities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new user's first request failed while the file was half copied, though others were connected."""
    files = Files(tmp_path)
    dials: list[object] = []

    @asynccontextmanager
    async def connected(settings: Settings, user: User, dial: object) -> AsyncIterator[object]:
        dials.append(dial)
        yield object()

    monkeypatch.setattr(gateway, "connect_for", connected)
    async with gateway.running(Settings(nodes=("a:1",), tls_ca=files.ca)) as made:
        Path(files.ca).write_text("half")
        for name in ("shop", "rival"):
            async with made.client(User(name)):
                pass
    assert len(dials) > 1
    assert len(set(dials)) == 1
