"""AWS signatures: the vectors of AWS, and everything that may be changed after signing."""

from __future__ import annotations

import calendar
import hashlib
import hmac
from collections.abc import Callable

import pytest

from quorumq.gateway.sqs.errors import SqsError
from quorumq.gateway.sqs.signature import HttpRequest, claim_of, verify
from tests.gateway.sdk import Sdk

NOW = calendar.timegm((2015, 8, 30, 12, 36, 0))
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
VANILLA = {
    "host": "example.amazonaws.com",
    "x-amz-date": "20150830T123600Z",
    "authorization": "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
    "SignedHeaders=host;x-amz-date, Signature=",
}
VECTORS = {
    # name: (method, path, query, signature), from AWS' test suite of the algorithm
    "get-vanilla": ("GET", "/", "", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
    "post-vanilla": ("POST", "/", "", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
    "get-vanilla-query-order-key-case": (
        "GET", "/", "Param2=value2&Param1=value1", "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
    ),
}  # fmt: skip


def secrets_of(name: str) -> tuple[str, ...]:
    return {"AKIDEXAMPLE": (SECRET,), "shop": ("new", "old")}.get(name, ())


def check(request: HttpRequest, now: float = NOW) -> None:
    claim = claim_of(request.headers)
    assert claim is not None
    verify(request, claim, secrets_of, lambda: now)


@pytest.mark.parametrize("name", VECTORS)
def test_the_vectors_of_aws_verify(name: str) -> None:
    method, path, query, signature = VECTORS[name]
    headers = {**VANILLA, "authorization": VANILLA["authorization"] + signature}
    check(HttpRequest(method, path, query, headers, b""))


def signed(secret: str = "new", name: str = "shop", now: float = NOW, **more: str) -> HttpRequest:
    """A signed request of an SDK."""
    headers = {"host": "h", "x-amz-target": "AmazonSQS.SendMessage", "content-type": "json", **more}
    request = HttpRequest("POST", "/", "", headers, b'{"a":1}')
    return request._replace(headers={**headers, **Sdk(None, name, secret, lambda: now).signed(request)})


def with_header(name: str, value: str) -> Callable[[HttpRequest], HttpRequest]:
    return lambda request: request._replace(headers={**request.headers, name: value})


CHANGES: dict[str, Callable[[HttpRequest], HttpRequest]] = {
    "body": lambda request: request._replace(body=b'{"a":2}'),
    "method": lambda request: request._replace(method="GET"),
    "path": lambda request: request._replace(path="/000000000000/other"),
    "query": lambda request: request._replace(query="a=1"),
    "host": with_header("host", "i"),
    "target": with_header("x-amz-target", "AmazonSQS.DeleteQueue"),
    "another header of AWS": with_header("x-amz-security-token", "t"),
    "digest of the body": with_header("x-amz-content-sha256", "UNSIGNED-PAYLOAD"),
    "time": with_header("x-amz-date", "20150830T123601Z"),
}


def test_requests_signed_with_any_secret_of_the_client_verify() -> None:
    check(signed("new"))
    check(signed("old"), now=NOW + 14 * 60)
    check(signed(**{"x-amz-content-sha256": hashlib.sha256(b'{"a":1}').hexdigest()}))


@pytest.mark.parametrize("name", CHANGES)
def test_a_request_that_was_changed_after_signing_is_refused(name: str) -> None:
    with pytest.raises(SqsError) as caught:
        check(CHANGES[name](signed()))
    assert (caught.value.code, caught.value.status) == ("SignatureDoesNotMatch", 403)


def test_a_wrong_secret_and_an_unknown_client_get_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, digests = [], []
    new = hmac.new

    def counted(*args: object, **more: object) -> hmac.HMAC:
        digests[-1] += 1
        return new(*args, **more)  # type: ignore[arg-type]

    for name, secret in (("AKIDEXAMPLE", "wrong"), ("nobody", "new"), ("nobody", "-")):
        request = signed(secret, name)
        digests.append(0)
        monkeypatch.setattr(hmac, "new", counted)
        with pytest.raises(SqsError) as caught:
            check(request)
        monkeypatch.undo()
        answers.append((caught.value.code, caught.value.message))
    assert answers == [answers[0]] * 3
    assert digests == [5] * 3


def test_a_query_of_too_many_fields_is_refused() -> None:
    with pytest.raises(SqsError) as caught:
        check(signed()._replace(query="&".join(f"a{n}=1" for n in range(1001))))
    assert caught.value.code == "MalformedQueryString"


@pytest.mark.parametrize("minutes", [-16, 16, 60 * 24 * 365])
def test_a_request_of_another_time_is_refused_as_expired(minutes: int) -> None:
    with pytest.raises(SqsError, match=r"Signature expired: 20150830T123600Z"):
        check(signed(), now=NOW + 60 * minutes)


@pytest.mark.parametrize(
    "change",
    [
        with_header("authorization", "Bearer x"),
        with_header("authorization", "AWS4-HMAC-SHA256 Credential=a/b"),
        with_header("authorization", "AWS4-HMAC-SHA256 " + 100_000 * "Credential="),
        with_header("x-amz-date", ""),
        with_header("x-amz-date", "20150831T123600Z"),
        with_header("x-amz-date", "2015083\u0660T123600Z"),
    ],
)
def test_a_header_that_is_no_signature_is_incomplete(change: Callable[[HttpRequest], HttpRequest]) -> None:
    with pytest.raises(SqsError) as caught:
        check(change(signed()))
    assert caught.value.code == "IncompleteSignature"
