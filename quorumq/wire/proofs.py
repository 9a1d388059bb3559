"""Proofs of a node to a peer that it knows the cluster's secret, without saying it.

When a node dials another, its HELLO is answered by `Challenge`. The dialler answers that with `Proof`, and the listener
with a `Proof` of its own, before `Welcome` or `Admitted`. A proof is a keyed digest over all that was said so far, so
that it is of use on no other connection and for no other HELLO, and over the role, so that it cannot be sent back. It
says nothing about later bytes: only TLS keeps these from being changed on the way.

When a secret is changed, a node has several (docs/operations.md). As a dialler it proves that it knows its first one,
and takes no other. As a listener it takes any of them, and answers with the same one.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from typing import Final, NamedTuple

NONCE_BYTES: Final = 16
PROOF_BYTES: Final = 32

DIALLER: Final = b"dialler"
LISTENER: Final = b"listener"

_PERSON: Final = b"quorumq peer"


def fresh_nonce() -> bytes:
    """Return the random bytes that one side adds, so that no connection is like another."""
    return secrets.token_bytes(NONCE_BYTES)


class Handshake(NamedTuple):
    """Messages said on a connection between two nodes."""

    hello: bytes
    listener: str
    challenge: bytes
    answer: bytes

    def prove(self, secret: bytes, role: bytes) -> bytes:
        """Return the digest by which ``role`` shows that it knows ``secret``."""
        digest = hashlib.blake2b(digest_size=PROOF_BYTES, key=secret, person=_PERSON)
        for part in (
            role,
            hashlib.blake2b(self.hello).digest(),
            self.listener.encode(),
            self.challenge,
            self.answer,
        ):
            digest.update(len(part).to_bytes(2, "big"))
            digest.update(part)
        return digest.digest()

    def proven(self, proof: bytes, keys: Iterable[bytes], role: bytes) -> bytes | None:
        """Return the one of ``keys`` that the other side, in its ``role``, knows; None if it shows none."""
        for secret in keys:
            if hmac.compare_digest(self.prove(secret, role), proof):
                return secret
        return None
