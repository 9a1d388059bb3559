"""Errors as problem+json (RFC 9457)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from quorumq.client import Closed
from quorumq.core.values.errors import Busy, Code, QuorumqError, Transient, UnknownToken, UsageError
from quorumq.gateway.gateway import REFUSED
from quorumq.gateway.jsonapi.shapes import Problem

TYPE: Final = "application/problem+json"
STATUSES: Final = {
    Code.NOT_FOUND: 404,
    Code.UNAUTHORIZED: 403,
    Code.UNKNOWN_TOKEN: 503,
    Code.TOO_LARGE: 413,
    Code.CONFLICT: 409,
    Code.SESSION_CLOSED: 409,
    Code.STALE_GENERATION: 409,
    Code.ALREADY_SETTLED: 409,
    Code.HOLD_LOST: 409,
    Code.BUSY: 429,
}
"""Statuses by code; other transient errors are 503, other mistakes of the caller 400, and the rest 500."""
REMEDIES: Final[dict[str, str]] = {
    Code.NOT_FOUND: "check the name",
    Code.UNAUTHORIZED: "ask for the right: it is in the nodes' clients file (`quorumq clients`)",
    Code.UNKNOWN_TOKEN: "tell the operator of the gateway: /ready and its log have the reason",
    Code.TOO_LARGE: "send less at once",
    Code.BAD_RECEIPT: "send the receipt as fetch gave it",
    Code.HOLD_LOST: "stop working on the message: it comes again unless it was settled",
    Code.ALREADY_SETTLED: "nothing: the message is settled",
    Code.STALE_GENERATION: "nothing: the group was rewound, and the message comes again if that covers it",
    Code.BUSY: "repeat the request after the seconds of Retry-After",
    Code.STORAGE_FULL: "repeat the request once the nodes have space",
    "stopping": "ask another gateway: repeat receipts as they are; a repeated publish may make two messages",
    Code.OUTCOME_UNKNOWN: "it may have happened: repeat receipts as they are; a repeated publish may make two messages",
}
REPEAT: Final = "repeat the request: nothing was done"
CHANGE: Final = "change the request: it cannot work as it is"
REPORT: Final = "look at the gateway's log, and report it"


class Refused(UsageError):
    """A request that is wrong before the cluster is asked.

    Args:
        detail: the error in words.
        value: the value that is wrong.
        status: HTTP status.
        allow: methods that the path takes, if the method is wrong.
    """

    code = "bad-request"

    def __init__(self, detail: str, *, value: str | None = None, status: int = 400, allow: str = "") -> None:
        super().__init__(detail)
        self.value = value
        self.status = status
        self.allow = allow


class Stops(Transient):
    """The gateway stops, or has closed the connections of the user before the request was done."""

    code = "stopping"

    def __init__(self) -> None:
        super().__init__("the gateway stops, or has closed its connections to the nodes: ask again")


def status_of(error: QuorumqError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, Refused):
        return error.status
    if error.code in STATUSES:
        return STATUSES[Code(error.code)]
    return 503 if isinstance(error, Transient | Closed) else 400 if isinstance(error, UsageError) else 500


def problem_of(error: QuorumqError) -> Problem:
    """Return an error for the body of an answer."""
    if isinstance(error, Closed):
        error = Stops()
    if isinstance(error, UnknownToken):
        error = UnknownToken(REFUSED)
    status = status_of(error)
    code = str(error.code)
    if isinstance(error, Refused):
        code = {401: str(Code.UNAUTHORIZED), 404: str(Code.NOT_FOUND)}.get(status, code)
    other = REPEAT if isinstance(error, Transient) else CHANGE if isinstance(error, UsageError) else REPORT
    return Problem(
        type=f"urn:quorumq:problem:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=str(error),
        code=code,
        value=error.value if isinstance(error, Refused) else None,
        remedy=REMEDIES.get(str(error.code), other),
    )


def headers_of(error: QuorumqError) -> dict[str, str]:
    status = status_of(error)
    if status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if isinstance(error, Refused) and error.allow:
        return {"Allow": error.allow}
    if isinstance(error, Busy):
        return {"Retry-After": str(max(1, round(error.delay)))}
    return {"Retry-After": "1"} if status == 503 else {}
