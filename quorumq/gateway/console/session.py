"""Sessions of the console: a signed cookie, and a token of each session that its forms carry. Nothing is kept here.

Gateways with one file of keys take each other's cookies. Without one the key is made at the start, and ends with it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Final, NamedTuple

COOKIE: Final = "quorumq-console"
SESSION_S: Final = 12 * 3600
"""Seconds for which a session lasts."""
COOKIE_CHARS_MAX: Final = 500


class Session(NamedTuple):
    """A session: the client that signed in, the end in seconds since 1970, and random text that no other one has."""

    name: str
    ends: int
    nonce: str


class Sessions:
    """Makes and reads cookies. A session ends with its client's token.

    Args:
        keys: gives the keys of the gateways, the newest first; if there are none, one is made.
        token_hash_of: gives the hash of a client's token, by name; "" if it has none.
    """

    def __init__(
        self,
        keys: Callable[[], tuple[bytes, ...]] = tuple,
        token_hash_of: Callable[[str], str] = lambda name: "",
    ) -> None:
        self._token_hash_of = token_hash_of
        self._given, self._own = keys, secrets.token_bytes(32)

    @property
    def _keys(self) -> list[bytes]:
        given = self._given() or (self._own,)
        return [hmac.new(key, b"quorumq console session\0", hashlib.sha256).digest() for key in given]

    def begin(self, name: str, now: float) -> Session:
        return Session(name, int(now) + SESSION_S, secrets.token_hex(16))

    def cookie_of(self, session: Session) -> str:
        text = f"{session.ends}.{session.nonce}.{session.name}".encode()
        body = base64.urlsafe_b64encode(text).decode().rstrip("=")
        return f"{body}.{self._digest(self._keys[0], self._signed(text, session.name))}"

    def read(self, cookie: str, now: float) -> Session | None:
        """Return the session of a cookie; None if no gateway gave it, or it is over."""
        body, _, digest = cookie.partition(".")
        if len(cookie) > COOKIE_CHARS_MAX:
            return None
        try:
            text = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
            ends, nonce, name = text.decode().split(".", 2)
        except (binascii.Error, ValueError):
            return None
        signed = self._signed(text, name)
        genuine = [
            key
            for key in self._keys
            if hmac.compare_digest(self._digest(key, signed).encode(), digest.encode())
        ]
        if not genuine:
            return None
        session = Session(name, int(ends), nonce)
        return session if now < session.ends else None

    def _signed(self, text: bytes, name: str) -> bytes:
        """Return the bytes under a cookie's digest: its text, and the present token of its client."""
        return text + b"\0" + self._token_hash_of(name).encode()

    def form_token(self, session: Session) -> str:
        """Return the token that a session's forms carry: another site cannot know it."""
        return self._digest(self._keys[0], b"form\0" + self.cookie_of(session).encode())

    def is_form_token(self, session: Session, token: str) -> bool:
        """Return True if a form was made for this session."""
        return hmac.compare_digest(self.form_token(session).encode(), token.encode("utf-8", "surrogatepass"))

    @staticmethod
    def _digest(key: bytes, text: bytes) -> str:
        return hmac.new(key, text, hashlib.sha256).hexdigest()
