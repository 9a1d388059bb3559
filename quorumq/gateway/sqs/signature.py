"""Verification of AWS signatures, version 4, as SDKs put them into the Authorization header."""

from __future__ import annotations

import calendar
import hashlib
import hmac
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote

from quorumq.gateway.sqs.errors import SqsError

ALGORITHM: Final = "AWS4-HMAC-SHA256"
SKEW_S: Final = 15 * 60
"""Seconds by which a client's clock may differ from the gateway's, as with AWS."""

QUERY_FIELDS_MAX: Final = 1000
NO_SECRET: Final = "-"
"""Secret to compare with if there is no such client: it takes as long, and so reveals no names."""

_FIELDS: Final = re.compile(
    rf"{ALGORITHM}\s+Credential=([^/,\s]+)/(\d{{8}})/([^/,\s]+)/([^/,\s]+)/aws4_request\s*,\s*"
    r"SignedHeaders=([a-z0-9;_-]+)\s*,\s*Signature=([0-9a-f]{64})\s*"
)
_DATE: Final = re.compile(r"\d{8}T\d{6}Z")


class HttpRequest(NamedTuple):
    """An HTTP request, as far as it is signed.

    Attributes:
        path: as it was sent, not decoded.
        headers: names in lower case.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes | bytearray


class Claim(NamedTuple):
    """Content of an Authorization header, not verified."""

    name: str
    date: str
    region: str
    service: str
    signed: tuple[str, ...]
    signature: str


def claim_of(headers: Mapping[str, str]) -> Claim | None:
    """Return the claim of a request, None if it is not signed; SqsError for a header of another form."""
    text = headers.get("authorization", "")
    if not text:
        return None
    match = _FIELDS.fullmatch(text.strip())
    if match is None:
        raise SqsError("IncompleteSignature", f"The Authorization header is no signature of {ALGORITHM}.")
    name, date, region, service, signed, signature = match.groups()
    return Claim(name, date, region, service, tuple(signed.split(";")), signature)


def verify(
    request: HttpRequest,
    claim: Claim,
    secrets_of: Callable[[str], Iterable[str]],
    now: Callable[[], float] = time.time,
) -> None:
    """Verify a request: all that is sent, its body too, was signed with a secret of the client, and just now.

    Args:
        request: with its whole body.
        secrets_of: gives the secrets of a client by name; none if there is no such client.

    Raises:
        SqsError: it is not; the text says why, and nothing of a secret.
    """
    sent = request.headers.get("x-amz-date", "")
    if not _DATE.fullmatch(sent) or sent[:8] != claim.date:
        raise SqsError(
            "IncompleteSignature", "X-Amz-Date is missing, or is not of the day of the credential."
        )
    unsigned = [
        name
        for name in request.headers
        if (name == "host" or name.startswith("x-amz-")) and name not in claim.signed
    ]
    if "host" not in claim.signed or unsigned:
        raise _mismatch(f"these headers must be signed: {', '.join(['host', *unsigned])[:200]}")
    digest = hashlib.sha256(request.body).hexdigest()
    if not hmac.compare_digest(request.headers.get("x-amz-content-sha256", digest).encode(), digest.encode()):
        raise _mismatch("X-Amz-Content-Sha256 is not the digest of the body")
    scope = f"{claim.date}/{claim.region}/{claim.service}/aws4_request"
    canonical = hashlib.sha256(canonical_request(request, claim.signed, digest).encode()).hexdigest()
    text = "\n".join((ALGORITHM, sent, scope, canonical)).encode()
    matches = False
    for secret in tuple(secrets_of(claim.name)) or (NO_SECRET,):
        expected = hmac.new(signing_key(secret, claim), text, hashlib.sha256).hexdigest()
        matches |= hmac.compare_digest(expected, claim.signature) and secret != NO_SECRET
    if not matches:
        raise _mismatch("there is no such client, or it has another secret (`quorumq clients key`)")
    try:
        skew = abs(calendar.timegm(time.strptime(sent, "%Y%m%dT%H%M%SZ")) - now())
    except ValueError:
        skew = float("inf")
    if skew > SKEW_S:
        raise SqsError(
            "SignatureDoesNotMatch",
            f"Signature expired: {sent} is more than {SKEW_S} s from the gateway's clock.",
            403,
        )


def _mismatch(reason: str) -> SqsError:
    return SqsError("SignatureDoesNotMatch", f"The signature does not match: {reason}.", 403)


def canonical_request(request: HttpRequest, signed: Iterable[str], digest: str) -> str:
    """Return the text of a request that is signed; SqsError if its query has too many fields."""
    try:
        pairs = parse_qsl(request.query, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX)
    except ValueError:
        text = f"The query has more than {QUERY_FIELDS_MAX} fields: send a form as the body of a POST."
        raise SqsError("MalformedQueryString", text) from None
    query = "&".join(
        f"{key}={value}" for key, value in sorted((quote(k, "-_.~"), quote(v, "-_.~")) for k, v in pairs)
    )
    headers = [f"{name}:{' '.join(request.headers.get(name, '').split())}\n" for name in signed]
    path = quote(request.path or "/", "/-_.~")
    return "\n".join((request.method, path, query, "".join(headers), ";".join(signed), digest))


def signing_key(secret: str, claim: Claim) -> bytes:
    """Return the key that signs requests of one day, region and service."""
    key = f"AWS4{secret}".encode()
    for part in (claim.date, claim.region, claim.service, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key
