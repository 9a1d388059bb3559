"""Bodies, attributes and protocols of SQS as messages of quorumq."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl, urlencode
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumq.gateway import requests
from quorumq.gateway.sqs import protocol
from quorumq.gateway.sqs.call import Params, queue_of_arn, queue_of_url
from quorumq.gateway.sqs.errors import SqsError
from quorumq.gateway.sqs.messages import (
    NUMBER,
    Selection,
    Typed,
    attributes_of,
    digest_of,
    headers_of,
    outgoing,
    typed_value,
)
from quorumq.gateway.sqs.signature import HttpRequest

MIB = 1024 * 1024


def text(value: str, kind: str = "String") -> dict[str, str]:
    return {"DataType": kind, "StringValue": value}


def test_digests_of_attributes_are_those_of_sdks() -> None:
    # Computed by the AWS SDK for Java for the same attributes.
    assert digest_of({"timestamp": Typed("Number", "1493147359900")}) == "235c5c510d26fb653d073faed50ae77c"


VALUES: dict[str, tuple[Any, Any]] = {
    # name: (value in a request, header)
    "text": (text("käse\r\n"), "käse\r\n"),
    "number": (text("1.5e3", "Number"), "1.5e3"),
    "typed": (text("7", "Number.int"), "7"),
    "own": (text("x", "String.own"), "x"),
    "größe": (text("L"), "L"),
    "bytes": ({"DataType": "Binary", "BinaryValue": "AAH/"}, b"\0\1\xff"),
    "typed.bytes": ({"DataType": "Binary.png", "BinaryValue": "AAH/"}, b"\0\1\xff"),
}


def test_attributes_become_headers_that_native_consumers_read_and_come_back_as_they_were() -> None:
    typed = {name: typed_value(name, value) for name, (value, _) in VALUES.items()}
    headers = headers_of(typed)
    assert {name: headers[name] for name in VALUES} == {name: header for name, (_, header) in VALUES.items()}
    assert attributes_of(headers) == typed


def test_headers_of_native_publishers_become_attributes() -> None:
    headers = {
        "n": 7, "f": 0.5, "b": True, "t": "x", "raw": b"\xff", "none": None, "no name!": "x", "sqs:types": "not JSON",
        "content-type": "application/json",
    }  # fmt: skip
    assert attributes_of(headers) == {
        "n": Typed("Number", "7"), "f": Typed("Number", "0.5"), "b": Typed("String", "true"), "t": Typed("String", "x"),
        "raw": Typed("Binary", b"\xff"), "content-type": Typed("String", "application/json"),
    }  # fmt: skip
    for types in ("[1]", '{"t":3}', '{"t":"Binary"}', "[" * 100_000):
        assert attributes_of({"t": "x", "sqs:types": types}) == {"t": Typed("String", "x")}


WRONG: dict[str, dict[str, Any]] = {
    "no body": {},
    "an empty body": {"MessageBody": ""},
    "a body of another type": {"MessageBody": 7},
    "a control character": {"MessageBody": "a\0b"},
    "half a character": {"MessageBody": "\ud800"},
    "too long": {"MessageBody": (MIB + 1) * "x"},
    "too long with its attributes": {"MessageBody": (MIB - 4) * "x", "MessageAttributes": {"a": text("b")}},
    "a deduplication id": {"MessageBody": "x", "MessageDeduplicationId": "1"},
    "a group that is none": {"MessageBody": "x", "MessageGroupId": "a b"},
    "11 attributes": {"MessageBody": "x", "MessageAttributes": {f"a{n}": text("b") for n in range(11)}},
    "an attribute of AWS": {"MessageBody": "x", "MessageAttributes": {"AWS.x": text("b")}},
    "a name with a paragraph sign": {"MessageBody": "x", "MessageAttributes": {"a\u00a7": text("b")}},
    "a name with a colon": {"MessageBody": "x", "MessageAttributes": {"sqs:types": text("b")}},
    "two dots": {"MessageBody": "x", "MessageAttributes": {"a..b": text("b")}},
    "no type": {"MessageBody": "x", "MessageAttributes": {"a": {"StringValue": "b"}}},
    "an unknown type": {"MessageBody": "x", "MessageAttributes": {"a": text("b", "Text")}},
    "an empty value": {"MessageBody": "x", "MessageAttributes": {"a": text("")}},
    "no number": {"MessageBody": "x", "MessageAttributes": {"a": text("b", "Number")}},
    "a number that is too long": {"MessageBody": "x", "MessageAttributes": {"a": text(257 * "1", "Number")}},
    "no base64": {"MessageBody": "x", "MessageAttributes": {"a": {"DataType": "Binary", "BinaryValue": "*"}}},
    "no mapping": {"MessageBody": "x", "MessageAttributes": ["a"]},
    "an attribute of another type": {"MessageBody": "x", "MessageAttributes": {"a": "b"}},
    "another system attribute": {"MessageBody": "x", "MessageSystemAttributes": {"Trace": text("b")}},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_message_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(SqsError) as caught:
        outgoing(Params(WRONG[name]), MIB)
    assert caught.value.status == 400


def test_digits_cost_time_in_proportion_to_their_number() -> None:
    began = time.process_time()
    assert NUMBER.fullmatch(50_000 * "1" + "x") is None
    assert time.process_time() - began < 0.5
    for good in ("1", "-1.", "+.5", "1.5e-3", "007"):
        assert NUMBER.fullmatch(good), good
    for bad in ("", ".", "e1", "1e", "1.5.2", "\u0661"):
        assert NUMBER.fullmatch(bad) is None, bad


def test_selections_match_names_and_beginnings() -> None:
    selection = Selection.of(
        Params({"MessageAttributeNames": ["a", "b.*"], "AttributeNames": ["SentTimestamp"]})
    )
    assert [name for name in ("a", "ab", "b", "b.c", "c") if selection.has(name)] == ["a", "b", "b.c"]
    assert all(Selection.of(Params({"MessageAttributeNames": [every]})).has("x") for every in ("All", ".*"))


def form(**params: str) -> HttpRequest:
    return HttpRequest("POST", "/", "", {}, urlencode(params).encode())


def test_forms_become_the_parameters_of_json() -> None:
    request = form(**{
        "Action": "SendMessageBatch", "QueueUrl": "u",
        "SendMessageBatchRequestEntry.2.Id": "b", "SendMessageBatchRequestEntry.2.MessageBody": "2",
        "SendMessageBatchRequestEntry.1.Id": "a", "SendMessageBatchRequestEntry.1.MessageBody": "1",
        "SendMessageBatchRequestEntry.1.MessageAttribute.1.Name": "n",
        "SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.DataType": "Number",
        "SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.StringValue": "7",
        "SendMessageBatchRequestEntry.10.Id": "c", "SendMessageBatchRequestEntry.10.MessageBody": "3",
    })  # fmt: skip
    assert last_of(protocol.parsing(request)).params == {
        "QueueUrl": "u",
        "Entries": [
            {
                "Id": "a",
                "MessageBody": "1",
                "MessageAttributes": {"n": {"DataType": "Number", "StringValue": "7"}},
            },
            {"Id": "b", "MessageBody": "2"},
            {"Id": "c", "MessageBody": "3"},
        ],
    }
    request = form(**{
        "Action": "CreateQueue", "QueueName": "q", "Attribute.1.Name": "DelaySeconds", "Attribute.1.Value": "3",
        "Tag.1.Key": "k", "Tag.1.Value": "v", "AttributeName": "All", "TagKey.1": "a", "TagKey.2": "b",
    })  # fmt: skip
    assert last_of(protocol.parsing(request)).params == {
        "QueueName": "q", "Attributes": {"DelaySeconds": "3"}, "Tags": {"k": "v"}, "AttributeNames": ["All"],
        "TagKeys": ["a", "b"],
    }  # fmt: skip
    # So SDKs send empty lists and mappings.
    request = form(Action="X", Entries="", AttributeNames="", MessageAttributes="", Tags="")
    assert last_of(protocol.parsing(request)).params == {}


BAD_FORMS = [
    b"", b"Action=", b"Action.1=x", b"Action=X&a=1&a.b=2", b"Action=X&a.b=2&a=1", b"Action=X&AttributeName.x=1",
    b"Action=X&AttributeName.1.2.3.4.5.6.7.8=1", b"Action=X&Attribute.1.Nam=1", b"Action=X&Attribute.1=1", b"\xff\xfe",
    b"Action=X&" + b"&".join(b"a%d=1" % n for n in range(2_001)), b"Action=%ff",
    b"Action=X&AttributeName." + 9 * b"9" + b"=1", b"Action=X&a" + 100_000 * b".a" + b"=1",
]  # fmt: skip


@settings(max_examples=100)
@given(st.lists(st.tuples(st.text(max_size=8), st.text(max_size=40))), st.integers(3, 9))
def test_a_form_is_unescaped_in_steps_as_it_is_at_once(pairs: list[tuple[str, str]], chunk: int) -> None:
    """One of 4 MiB took 0.4 s in one step, in which a gateway served no other user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests, "FORM_CHUNK", chunk)
        for body in (urlencode(pairs), urlencode(pairs).replace("%", "%z%2")):
            expected = parse_qsl(body, keep_blank_values=True, errors="replace")
            assert last_of(requests.form_fields(body, 100, "replace")) == expected
    long = form(Action="SendMessage", MessageBody="\xe9" * requests.FORM_CHUNK)
    assert len(list(protocol.parsing(long))) == 6, "an escape is not cut, so a step is a bit less than 16 KiB"


def last_of(steps: Generator[None, None, Any]) -> Any:
    """Return the result of a generator."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize("body", BAD_FORMS)
def test_malformed_forms_are_refused(body: bytes) -> None:
    with pytest.raises(SqsError) as caught:
        last_of(protocol.parsing(HttpRequest("POST", "/", "", {}, body)))
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "body",
    [
        b"[]", b"7", b"{", b"\xff", b"[" * 100_000, b'{"a":' * 20_000, b"1" * 5_000, b"NaN",
        b'{"a":' * 8 + b"1" + b"}" * 8, b'{"a":' + b"[" * 300 + b"]" * 300 + b"}",
        b'{"Entries":[' + b"[]," * protocol.FIELDS_MAX + b"7]}",
        b'{"a":{"k":["\\ud800"]}}', b'{"a\\udfff":1}', b'{"a":"\xed\xa0\x80"}',
    ],
)  # fmt: skip
def test_malformed_json_is_refused(body: bytes) -> None:
    with pytest.raises(SqsError) as caught:
        last_of(protocol.parsing(HttpRequest("POST", "/", "", {"x-amz-target": "AmazonSQS.X"}, body)))
    assert caught.value.code == "SerializationException"


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@settings(max_examples=25)
@given(
    st.dictionaries(
        st.sampled_from(
            ["MessageBody", "MessageAttributes", "MessageGroupId", "Entries", "DelaySeconds", "Tags"]
        ),
        TREES,
    )
)
def test_parameters_of_any_shape_raise_nothing_but_errors_of_sqs(values: dict[str, Any]) -> None:
    params = Params(json.loads(json.dumps(values)))
    for read in (
        lambda: outgoing(params, MIB), lambda: params.entries("SendMessageBatch"),
        lambda: params.number("DelaySeconds", 0, 900, 0), lambda: params.text_mapping("Tags"),
        lambda: Selection.of(params),
    ):  # fmt: skip
        with suppress(SqsError):
            read()


@settings(max_examples=40)
@given(st.text(max_size=30))
def test_answers_in_xml_bring_any_text_that_xml_may_have(content: str) -> None:
    result = {"Messages": [{"Body": content, "Attributes": {"a<b": content}}], "Flag": True}
    root = ElementTree.fromstring(protocol.encode_xml("ReceiveMessage", result, "r"))
    (body,) = root.iter("{http://queue.amazonaws.com/doc/2012-11-05/}Body")
    if protocol.is_xml(content):
        assert (body.text or "") == content


@pytest.mark.parametrize("url", ["", "http://h/0/a b", "http://[", "x" * 1_000, "http://h/0/%ff%00"])
def test_a_url_of_no_queue_is_that_of_a_queue_that_is_not_there(url: str) -> None:
    with pytest.raises(SqsError) as caught:
        queue_of_url(url)
    assert caught.value.code == "QueueDoesNotExist"


def test_queues_are_named_by_the_end_of_url_and_arn() -> None:
    for url in (
        "http://h:1/000000000000/jobs",
        "jobs",
        "https://sqs.eu-north-1.amazonaws.com/1/jobs/",
        "/1/jobs",
    ):
        assert queue_of_url(url) == "jobs"
    assert queue_of_arn("arn:aws:sqs:eu-north-1:000000000000:jobs") == "jobs"
    for arn in ("", "jobs", "arn:aws:sns:r:a:jobs", "arn:aws:sqs:r:a:jobs:x"):
        with pytest.raises(SqsError):
            queue_of_arn(arn)
