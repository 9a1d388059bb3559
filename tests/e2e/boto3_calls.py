"""Calls of boto3, in a process of its own: its dependencies are apart from those of the tests.

Arguments: a part (a function below), the gateway's URL, an access key id and its secret.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError, ReadTimeoutError

BODY = "käse <&> \U0001f9c0"
ATTRIBUTES = {
    "größe": {"DataType": "String", "StringValue": "L"},
    "n": {"DataType": "Number.int", "StringValue": "7"},
    "raw": {"DataType": "Binary.png", "BinaryValue": b"\0\xff"},
}
MISSING = "http://elsewhere/000000000000/missing"


def connected(url: str, key: str, secret: str, **options: Any) -> Any:
    config = Config(**{"retries": {"total_max_attempts": 1}, **options})
    keys = {"aws_access_key_id": key, "aws_secret_access_key": secret, "region_name": "eu-north-1"}
    return boto3.client("sqs", endpoint_url=url, config=config, **keys)


def refused(code: str, call: Callable[..., Any], **params: Any) -> None:
    """Check that a call is refused, by the exception of that name if the SDK has one."""
    names: tuple[str, ...] = ()
    try:
        call(**params)
    except ClientError as error:
        names = type(error).__name__, error.response["Error"]["Code"]
    assert code in names, (call, names)


def actions(url: str, key: str, secret: str) -> None:
    """Go through all actions that SQS has here, once each at least; the SDK itself checks the MD5s."""
    sqs = connected(url, key, secret)
    jobs = sqs.create_queue(QueueName="jobs", Attributes={"VisibilityTimeout": "20"}, tags={"team": "a"})[
        "QueueUrl"
    ]
    assert sqs.get_queue_url(QueueName="jobs")["QueueUrl"] == jobs
    sqs.tag_queue(QueueUrl=jobs, Tags={"cost": "b"})
    sqs.untag_queue(QueueUrl=jobs, TagKeys=["team"])
    assert sqs.list_queue_tags(QueueUrl=jobs)["Tags"] == {"cost": "b"}
    sqs.set_queue_attributes(QueueUrl=jobs, Attributes={"VisibilityTimeout": "30"})
    for number in range(3):
        sqs.create_queue(QueueName=f"page-{number}")
    pages = sqs.get_paginator("list_queues").paginate(
        QueueNamePrefix="page-", PaginationConfig={"PageSize": 2}
    )
    assert [len(page["QueueUrls"]) for page in pages] == [2, 1]

    sent = sqs.send_message(QueueUrl=jobs, MessageBody=BODY, MessageAttributes=ATTRIBUTES, MessageGroupId="g")
    options = {
        "MessageSystemAttributeNames": ["All"],
        "MessageAttributeNames": ["All"],
        "WaitTimeSeconds": 20,
    }
    (message,) = sqs.receive_message(QueueUrl=jobs, **options)["Messages"]
    assert (message["MessageId"], message["Body"]) == (sent["MessageId"], BODY)
    assert message["MessageAttributes"] == ATTRIBUTES
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    held = {"QueueUrl": jobs, "ReceiptHandle": message["ReceiptHandle"]}
    sqs.change_message_visibility(**held, VisibilityTimeout=60)
    counts = sqs.get_queue_attributes(QueueUrl=jobs, AttributeNames=["All"])["Attributes"]
    assert counts["ApproximateNumberOfMessagesNotVisible"] == "1"
    for _ in range(2):
        sqs.delete_message(**held)

    entries = [{"Id": str(number), "MessageBody": str(number)} for number in range(9)]
    batch = sqs.send_message_batch(QueueUrl=jobs, Entries=[*entries, {"Id": "bad", "MessageBody": "\0"}])
    assert (len(batch["Successful"]), [one["Id"] for one in batch["Failed"]]) == (9, ["bad"])
    numbers = set(range(9))
    while numbers:
        got = sqs.receive_message(QueueUrl=jobs, MaxNumberOfMessages=10, **options)["Messages"]
        handles = [{"Id": one["Body"], "ReceiptHandle": one["ReceiptHandle"]} for one in got]
        later = [{**one, "VisibilityTimeout": 50} for one in handles]
        assert len(sqs.change_message_visibility_batch(QueueUrl=jobs, Entries=later)["Successful"]) == len(
            got
        )
        assert len(sqs.delete_message_batch(QueueUrl=jobs, Entries=handles)["Successful"]) == len(got)
        numbers -= {int(one["Body"]) for one in got}
    sqs.send_message(QueueUrl=jobs, MessageBody="x", DelaySeconds=900)
    sqs.purge_queue(QueueUrl=jobs)
    dead_letters(sqs, jobs)
    refusals(sqs, jobs)
    sqs.delete_queue(QueueUrl=jobs)
    refused("QueueDoesNotExist", sqs.send_message, QueueUrl=jobs, MessageBody="x")


def dead_letters(sqs: Any, jobs: str) -> None:
    dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    sqs.set_queue_attributes(QueueUrl=jobs, Attributes={"RedrivePolicy": policy})
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [jobs]
    sqs.send_message(QueueUrl=jobs, MessageBody="dies")
    assert sqs.receive_message(QueueUrl=jobs, VisibilityTimeout=0, WaitTimeSeconds=20)["Messages"]
    (message,) = sqs.receive_message(QueueUrl=dead, WaitTimeSeconds=20, VisibilityTimeout=0)["Messages"]
    assert message["Body"] == "dies"
    assert sqs.start_message_move_task(SourceArn=arn)["TaskHandle"]
    (task,) = sqs.list_message_move_tasks(SourceArn=arn)["Results"]
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 1)
    (message,) = sqs.receive_message(QueueUrl=jobs, WaitTimeSeconds=20)["Messages"]
    sqs.delete_message(QueueUrl=jobs, ReceiptHandle=message["ReceiptHandle"])
    refused("ResourceNotFoundException", sqs.start_message_move_task, SourceArn=arn + "x")


def refusals(sqs: Any, jobs: str) -> None:
    for call in (sqs.receive_message, sqs.purge_queue, sqs.delete_queue, sqs.list_queue_tags):
        refused("QueueDoesNotExist", call, QueueUrl=MISSING)
    refused("QueueDoesNotExist", sqs.get_queue_url, QueueName="missing")
    refused("QueueNameExists", sqs.create_queue, QueueName="jobs", Attributes={"VisibilityTimeout": "1"})
    refused("ReceiptHandleIsInvalid", sqs.delete_message, QueueUrl=jobs, ReceiptHandle="x")
    refused("InvalidMessageContents", sqs.send_message, QueueUrl=jobs, MessageBody="\0")
    refused("InvalidAttributeName", sqs.set_queue_attributes, QueueUrl=jobs, Attributes={"Colour": "red"})
    refused("InvalidParameterValue", sqs.receive_message, QueueUrl=jobs, WaitTimeSeconds=21)
    refused("EmptyBatchRequest", sqs.delete_message_batch, QueueUrl=jobs, Entries=[])
    refused("UnsupportedOperation", sqs.create_queue, QueueName="a.fifo", Attributes={"FifoQueue": "true"})


def signatures(url: str, key: str, secret: str) -> None:
    """Sign by another secret, and for another client."""
    refused("SignatureDoesNotMatch", connected(url, key, secret + "x").list_queues)
    refused("SignatureDoesNotMatch", connected(url, "nobody", secret).list_queues)


def cancelled(url: str, key: str, secret: str) -> None:
    """Give up long polls; the next message is delivered at once, in its first delivery."""
    sqs = connected(url, key, secret)
    queue = sqs.create_queue(QueueName="cancelled")["QueueUrl"]
    for _ in range(5):
        try:
            connected(url, key, secret, read_timeout=0.2).receive_message(QueueUrl=queue, WaitTimeSeconds=20)
        except ReadTimeoutError:
            continue
        raise AssertionError("the poll was answered")
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    answer = sqs.receive_message(
        QueueUrl=queue, WaitTimeSeconds=20, AttributeNames=["ApproximateReceiveCount"]
    )
    assert answer["Messages"][0]["Attributes"]["ApproximateReceiveCount"] == "1"


def repeated(url: str, key: str, secret: str) -> None:
    """Send and delete messages for as long as the input is open, with the repetitions of the SDK; lose none."""
    sqs = connected(
        url, key, secret, retries={"total_max_attempts": 100, "mode": "standard"}, read_timeout=30
    )
    queue = sqs.create_queue(QueueName="repeated")["QueueUrl"]
    print("begun", flush=True)
    for number in range(40):
        sqs.send_message(QueueUrl=queue, MessageBody=str(number))
        print(number, flush=True)
    sys.stdin.read()
    numbers = set(range(40))
    while numbers:
        got = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=5).get(
            "Messages", []
        )
        for message in got:
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
            numbers.discard(int(message["Body"]))


if __name__ == "__main__":
    part, *arguments = sys.argv[1:]
    {one.__name__: one for one in (actions, signatures, cancelled, repeated)}[part](*arguments)
