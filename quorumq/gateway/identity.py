"""Users of a gateway: clients of the nodes' clients file, by their tokens or access keys.

A gateway decides who asks. The nodes decide what that client may do: they get its name with each connection, from a
gateway that has the right ``on_behalf`` (SECURITY.md).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from quorumq.core.values.errors import Unauthorized
from quorumq.gateway.accesskeys import Keys, secret_access_key
from quorumq.node.clients import Clients


class User(NamedTuple):
    """A client that has shown who it is; its name is "" if the nodes have no clients file."""

    name: str


ANYBODY: Final = User("")

Owner = tuple[str, str]
"""Address of a client, and the name of the user that it asks for."""


class Identities:
    """Users by what they show.

    Args:
        clients: the clients file; None if the nodes have none. Then all users are the gateway itself.
        keys: keys of the gateways.
    """

    def __init__(self, clients: Clients | None, keys: Keys) -> None:
        self._clients = clients
        self._keys = keys

    @property
    def is_open(self) -> bool:
        """Return True if the nodes have no clients file."""
        return self._clients is None

    def by_token(self, token: str) -> User:
        """Return the user that has a token (``NAME.SECRET``); Unauthorized if no client has it."""
        if self._clients is None:
            return ANYBODY
        client = self._clients.find(token)
        if client is None:
            shown = "a token that no client has" if token else "no token"
            raise Unauthorized(f"the gateway was shown {shown}: send one that `quorumq clients add` printed")
        return User(client.name)

    def token_hash_of(self, name: str) -> str:
        """Return the hash of a client's token; "" if there is no such client, or no clients file."""
        return (None if self._clients is None else self._clients.token_hash(name)) or ""

    def may(self, user: User, right: str, topic: str) -> bool:
        """Return True if a user has a right, as far as the gateway knows: the nodes decide."""
        if self._clients is None:
            return True
        client = self._clients.named(user.name)
        return client is not None and client.may(right, topic, None)

    def keys(self) -> tuple[bytes, ...]:
        """Return the keys of the gateways, the newest first."""
        return self._keys.present

    def secrets_of(self, name: str) -> tuple[str, ...]:
        """Return the secret access keys that a client may sign with; () if there is no such client."""
        token_hash = self.token_hash_of(name)
        if not token_hash:
            return ()
        return tuple(secret_access_key(key, name, token_hash) for key in self.keys())
