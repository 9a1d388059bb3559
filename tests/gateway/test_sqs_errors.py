"""Errors of SQS: requests that are refused, by the types and texts that its SDKs know."""

from __future__ import annotations

from typing import Any

from tests.gateway.sdk import JOBS, URL, world

MIB = 1024 * 1024


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    # name: action, parameters, code
    "a FIFO queue": ("CreateQueue", {"QueueName": "a.fifo"}, "UnsupportedOperation"),
    "a FIFO queue by attribute": (
        "CreateQueue", {"QueueName": "a", "Attributes": {"FifoQueue": "true"}}, "UnsupportedOperation",
    ),
    "an attribute of FIFO queues": (
        "CreateQueue", {"QueueName": "a", "Attributes": {"FifoQueue": "false"}}, "InvalidAttributeName",
    ),
    "an attribute of FIFO queues, asked for": (
        "GetQueueAttributes", {"QueueUrl": JOBS, "AttributeNames": ["FifoQueue"]}, "InvalidAttributeName",
    ),
    "too many tasks": (
        "ListMessageMoveTasks", {"SourceArn": "arn:aws:sqs:r:0:jobs", "MaxResults": 11}, "InvalidParameterValue",
    ),
    "no tasks": (
        "ListMessageMoveTasks", {"SourceArn": "arn:aws:sqs:r:0:jobs", "MaxResults": 0}, "InvalidParameterValue",
    ),
    "a URL of a FIFO queue": ("SendMessage", {"QueueUrl": "a.fifo", "MessageBody": "x"}, "UnsupportedOperation"),
    "a name": ("CreateQueue", {"QueueName": "a.b"}, "InvalidParameterValue"),
    "a long name": ("CreateQueue", {"QueueName": 81 * "a"}, "InvalidParameterValue"),
    "an unknown attribute": ("CreateQueue", {"QueueName": "a", "Attributes": {"X": "1"}}, "InvalidAttributeName"),
    "an attribute out of bounds": (
        "CreateQueue", {"QueueName": "a", "Attributes": {"DelaySeconds": "901"}}, "InvalidAttributeValue",
    ),
    "a policy": ("CreateQueue", {"QueueName": "a", "Attributes": {"Policy": "{}"}}, "UnsupportedOperation"),
    "a key": ("CreateQueue", {"QueueName": "a", "Attributes": {"KmsMasterKeyId": "k"}}, "UnsupportedOperation"),
    "a redrive policy that is none": (
        "CreateQueue", {"QueueName": "a", "Attributes": {"RedrivePolicy": "{}"}}, "InvalidParameterValue",
    ),
    "a visibility that SQS has not": (
        "ReceiveMessage", {"QueueUrl": JOBS, "VisibilityTimeout": 43_201}, "InvalidParameterValue",
    ),
    "too many messages": ("ReceiveMessage", {"QueueUrl": JOBS, "MaxNumberOfMessages": 11}, "InvalidParameterValue"),
    "no message": ("ReceiveMessage", {"QueueUrl": JOBS, "MaxNumberOfMessages": 0}, "InvalidParameterValue"),
    "a long wait": ("ReceiveMessage", {"QueueUrl": JOBS, "WaitTimeSeconds": 21}, "InvalidParameterValue"),
    "a number that is none": ("ReceiveMessage", {"QueueUrl": JOBS, "WaitTimeSeconds": [1]}, "InvalidParameterValue"),
    "a huge number": ("ReceiveMessage", {"QueueUrl": JOBS, "WaitTimeSeconds": 10**30}, "InvalidParameterValue"),
    "a long delay": (
        "SendMessage", {"QueueUrl": JOBS, "MessageBody": "x", "DelaySeconds": 901}, "InvalidParameterValue",
    ),
    "permissions": ("AddPermission", {"QueueUrl": JOBS}, "UnsupportedOperation"),
    "an action": ("Explode", {}, "InvalidAction"),
    "no URL": ("SendMessage", {"MessageBody": "x"}, "MissingParameter"),
    "a task that is none": ("CancelMessageMoveTask", {"TaskHandle": "x"}, "InvalidParameterValue"),
    "an empty group": (
        "SendMessage", {"QueueUrl": JOBS, "MessageBody": "x", "MessageGroupId": ""}, "InvalidParameterValue",
    ),
    "a move from no dead-letter queue": (
        "StartMessageMoveTask", {"SourceArn": "arn:aws:sqs:r:0:jobs"}, "InvalidParameterValue",
    ),
    "a tag of AWS": ("TagQueue", {"QueueUrl": JOBS, "Tags": {"AWS:team": "x"}}, "InvalidParameterValue"),
    "a tag of AWS of a new queue": (
        "CreateQueue", {"QueueName": "a", "tags": {"aws:team": "x"}}, "InvalidParameterValue",
    ),
    "a list as an attribute": (
        "SendMessage", {"QueueUrl": JOBS, "MessageBody": "x", "MessageAttributes": {
            "a": {"DataType": "String", "StringValue": "x", "StringListValues": ["x"]},
        }}, "UnsupportedOperation",
    ),
    "a trace that is no text": (
        "SendMessage", {"QueueUrl": JOBS, "MessageBody": "x", "MessageSystemAttributes": {
            "AWSTraceHeader": {"DataType": "Binary", "BinaryValue": "eA=="},
        }}, "InvalidParameterValue",
    ),
}  # fmt: skip


async def test_requests_that_cannot_be_carried_out_are_refused_by_name() -> None:
    async with world("jobs") as it:
        for name, (action, params, code) in REFUSED.items():
            answer = await it.sdk.ask(action, **params)
            assert (answer.status, answer.code) == (400, code), name
            assert answer.headers["x-amzn-query-error"].endswith(";Sender")
        assert [topic.name for topic in (await it.client.metadata()).topics] == ["jobs"]


def attribute(**value: str) -> dict[str, Any]:
    return {"QueueUrl": JOBS, "MessageBody": "x", "MessageAttributes": {"a": value}}


CHARACTERS = (
    "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | "
    "#x10000 to #x10FFFF"
)
AS_AWS: list[tuple[str, dict[str, Any], str, str]] = [
    # action, parameters, type of the error, text
    ("SendMessage", {"QueueUrl": JOBS}, "MissingRequiredParameterException",
     "The request must contain the parameter MessageBody."),
    ("SendMessage", {"QueueUrl": JOBS, "MessageBody": "\ufffe"}, "InvalidMessageContents", CHARACTERS),
    ("SendMessage", attribute(DataType="String", StringValue="\0"), "InvalidParameterValueException", CHARACTERS),
    ("SendMessage", attribute(DataType="Number.int", StringValue=""), "InvalidParameterValueException",
     "Message (user) attribute 'a' must contain a non-empty value of type 'Number'."),
    ("SendMessage", attribute(DataType="Binary"), "InvalidParameterValueException",
     "Message (user) attribute 'a' must contain a non-empty value of type 'Binary'."),
    ("ReceiveMessage", {"QueueUrl": JOBS, "MaxNumberOfMessages": 11}, "InvalidParameterValueException",
     "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided."),
    ("ReceiveMessage", {"QueueUrl": JOBS, "WaitTimeSeconds": -1}, "InvalidParameterValueException",
     "Value -1 for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if provided."),
    ("ReceiveMessage", {"QueueUrl": f"{JOBS}x"}, "QueueDoesNotExist", "The specified queue does not exist."),
]  # fmt: skip


async def test_types_and_texts_of_errors_are_those_of_aws() -> None:
    """A program may compare them. An attribute with a control character was refused as an empty one."""
    async with world("jobs") as it:
        for action, params, kind, message in AS_AWS:
            answer = await it.sdk.ask(action, **params)
            assert answer.json == {"__type": f"com.amazonaws.sqs#{kind}", "message": message}
        none = (await it.sdk.query("ReceiveMessage", QueueUrl=f"{JOBS}x")).xml
        assert none.findtext("Error/Message") == "The specified queue does not exist for this wsdl version."
        assert none.findtext("Error/Detail") == ""


async def test_a_method_that_sqs_has_not_and_a_body_that_is_too_long_are_refused() -> None:
    async with world() as it:
        wrong = await it.sdk.send(b"", {}, method="PUT")
        assert (wrong.status, wrong.headers["allow"]) == (405, "POST, GET")
        answer = await it.sdk.send((4 * MIB + 1) * b"x", {"x-amz-target": "AmazonSQS.SendMessage"})
        assert (answer.status, answer.code) == (400, "InvalidParameterValue")
        assert it.gateway.bodies.bytes == 0


async def test_a_handle_that_is_none_of_a_queue_that_is_not_there_names_the_queue() -> None:
    async with world("jobs") as it:
        for action, params in (("DeleteMessage", {}), ("ChangeMessageVisibility", {"VisibilityTimeout": 1})):
            for url, code in ((JOBS, "ReceiptHandleIsInvalid"), (f"{URL}/none", "QueueDoesNotExist")):
                answer = await it.sdk.ask(action, QueueUrl=url, ReceiptHandle="x", **params)
                assert (answer.status, answer.code) == (400, code)
                entry = {"Id": "a", "ReceiptHandle": "x", **params}
                batch = await it.sdk.ask(f"{action}Batch", QueueUrl=url, Entries=[entry])
                assert code == (batch.code or batch.json["Failed"][0]["Code"])
                assert url != JOBS or answer.json["message"].endswith(
                    'handle "x" is not a valid receipt handle.'
                )
