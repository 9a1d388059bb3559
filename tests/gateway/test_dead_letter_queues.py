"""Dead-letter queues of SQS in front of a cluster in this process, in virtual time."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from tests.gateway.sdk import JOBS, URL, Sdk, World, counts, receive, world

DEAD, DEAD_ARN = f"{URL}/dead", "arn:aws:sqs:quorumq:000000000000:dead"


@asynccontextmanager
async def dead_lettered() -> AsyncIterator[World]:
    """Queues jobs and dead, which shows the dead letters of jobs; messages 0 to 2 are dead, and 3 is sent to dead."""
    async with world("dead") as it:
        policy = json.dumps({"deadLetterTargetArn": DEAD_ARN, "maxReceiveCount": "2"})
        await it.sdk.ok("CreateQueue", QueueName="jobs", Attributes={"RedrivePolicy": policy})
        for number in range(3):
            await it.sdk.ok("SendMessage", QueueUrl=JOBS, MessageBody=str(number))
        for _ in range(2):
            await receive(it.sdk, VisibilityTimeout=0)
        await trio.sleep(1)
        await it.sdk.ok("SendMessage", QueueUrl=DEAD, MessageBody="3")
        yield it


async def drained(sdk: Sdk, url: str) -> list[dict[str, Any]]:
    """Receive and delete until a queue is empty; return the messages."""
    messages = []
    while more := await receive(sdk, url, AttributeNames=["All"], WaitTimeSeconds=1):
        messages += more
        for message in more:
            await sdk.ok("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return messages


async def test_a_dead_letter_queue_shows_its_own_messages_and_those_that_died() -> None:
    async with dead_lettered() as it:
        assert await it.sdk.ok("ListDeadLetterSourceQueues", QueueUrl=DEAD) == {"queueUrls": [JOBS]}
        assert (await counts(it.sdk), (await counts(it.sdk, DEAD))[0]) == ([0, 0, 0], 4)
        messages = await drained(it.sdk, DEAD)
        assert sorted(message["Body"] for message in messages) == ["0", "1", "2", "3"]
        sources = {
            message["Body"]: message["Attributes"].get("DeadLetterQueueSourceArn") for message in messages
        }
        assert sources["3"] is None
        assert sources["0"] == "arn:aws:sqs:quorumq:000000000000:jobs"
        assert (await counts(it.sdk, DEAD))[0] == (await it.client.backlog("jobs", "sqs")).dead == 0


async def test_a_dead_letter_comes_sooner_than_a_change_before_has_said() -> None:
    async with dead_lettered() as it:
        message = next(one for one in await receive(it.sdk, DEAD, VisibilityTimeout=2) if one["Body"] != "3")
        for seconds in (100, 3):
            change = {"ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": seconds}
            await it.sdk.ok("ChangeMessageVisibility", QueueUrl=DEAD, **change)
        await trio.sleep(4)
        again = {one["Body"]: one["ReceiptHandle"] for one in await receive(it.sdk, DEAD)}
        deleted = {"QueueUrl": DEAD, "ReceiptHandle": again[message["Body"]]}
        await it.sdk.ok("DeleteMessage", **deleted)
        gone = await it.sdk.ask("ChangeMessageVisibility", VisibilityTimeout=10, **deleted)
        assert (gone.code, "Message does not exist" in gone.text) == ("InvalidParameterValue", True)


async def test_a_move_task_redrives_each_dead_letter_once() -> None:
    async with dead_lettered() as it:
        assert await it.sdk.ok("ListMessageMoveTasks", SourceArn=DEAD_ARN) == {"Results": []}
        jobs_arn = DEAD_ARN.replace("dead", "jobs")
        for moved, more in ((3, {}), (0, {"DestinationArn": jobs_arn})):
            handle = (await it.sdk.ok("StartMessageMoveTask", SourceArn=DEAD_ARN, **more))["TaskHandle"]
            (task,) = (await it.sdk.ok("ListMessageMoveTasks", SourceArn=DEAD_ARN))["Results"]
            assert abs(task.pop("StartedTimestamp") - it.client.wall_ms()) < 60_000
            counts = {f"ApproximateNumberOfMessages{name}": moved for name in ("Moved", "ToMove")}
            assert task == {"Status": "COMPLETED", "SourceArn": DEAD_ARN, **counts, **more}
        ended = await it.sdk.ask("CancelMessageMoveTask", TaskHandle=handle)
        assert (ended.status, ended.code) == (404, "ResourceNotFoundException")
        messages = await drained(it.sdk, JOBS)
        assert sorted(message["Body"] for message in messages) == ["0", "1", "2"]
        assert {message["Attributes"]["ApproximateReceiveCount"] for message in messages} == {"1"}
        other = "arn:aws:sqs:quorumq:000000000000:other"
        refused = await it.sdk.ask("StartMessageMoveTask", SourceArn=DEAD_ARN, DestinationArn=other)
        assert (refused.status, refused.code) == (404, "ResourceNotFoundException")
        await it.sdk.ok("CreateQueue", QueueName="other")
        refused = await it.sdk.ask("StartMessageMoveTask", SourceArn=DEAD_ARN, DestinationArn=other)
        assert refused.code == "UnsupportedOperation"
        for action in ("StartMessageMoveTask", "ListMessageMoveTasks"):
            refused = await it.sdk.ask(action, SourceArn=DEAD_ARN + "x")
            assert (refused.status, refused.code) == (404, "ResourceNotFoundException")


async def test_a_move_task_keeps_to_its_rate() -> None:
    """The rate was ignored: consumers of the queue got all messages at once."""
    async with dead_lettered() as it:
        for rate in (0, 501):
            refused = await it.sdk.ask(
                "StartMessageMoveTask", SourceArn=DEAD_ARN, MaxNumberOfMessagesPerSecond=rate
            )
            assert refused.code == "InvalidParameterValue"
        began = trio.current_time()
        await it.sdk.ok("StartMessageMoveTask", SourceArn=DEAD_ARN, MaxNumberOfMessagesPerSecond=1)
        assert 2 <= trio.current_time() - began < 2.1
        assert len(await drained(it.sdk, JOBS)) == 3


async def test_a_move_task_that_takes_too_long_says_so_and_is_repeated() -> None:
    async with world("dead") as it:
        policy = json.dumps({"deadLetterTargetArn": DEAD_ARN, "maxReceiveCount": "1"})
        await it.sdk.ok("CreateQueue", QueueName="jobs", Attributes={"RedrivePolicy": policy})
        for number in range(20):
            await it.client.publish("jobs", b"%d" % number)
        for _ in range(2):
            await receive(it.sdk, VisibilityTimeout=0)
        await trio.sleep(1)
        task = {"SourceArn": DEAD_ARN, "MaxNumberOfMessagesPerSecond": 1}
        answer = await it.sdk.ask("StartMessageMoveTask", **task)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert "16 messages moved so far: repeat the request" in answer.json["message"]
        await it.sdk.ok("StartMessageMoveTask", **task)
        assert len(await drained(it.sdk, JOBS)) == 20


async def test_purging_a_dead_letter_queue_purges_all_that_it_shows() -> None:
    async with dead_lettered() as it:
        await it.sdk.ok("PurgeQueue", QueueUrl=DEAD)
        assert (await counts(it.sdk, DEAD))[0] == 0
        assert not await drained(it.sdk, DEAD)


async def test_a_redrive_policy_can_be_changed_and_removed() -> None:
    async with dead_lettered() as it:
        missing = json.dumps({"deadLetterTargetArn": DEAD_ARN[:-4] + "none", "maxReceiveCount": 3})
        refused = await it.sdk.ask("SetQueueAttributes", QueueUrl=JOBS, Attributes={"RedrivePolicy": missing})
        assert (refused.code, "does not exist" in refused.json["message"]) == ("InvalidParameterValue", True)
        assert await it.sdk.ok("ListDeadLetterSourceQueues", QueueUrl=DEAD) == {"queueUrls": [JOBS]}
        await it.sdk.ok("SetQueueAttributes", QueueUrl=JOBS, Attributes={"RedrivePolicy": ""})
        assert await it.sdk.ok("ListDeadLetterSourceQueues", QueueUrl=DEAD) == {"queueUrls": []}
        attributes = await it.sdk.ok("GetQueueAttributes", QueueUrl=JOBS, AttributeNames=["All"])
        assert "RedrivePolicy" not in attributes["Attributes"]
        assert [message["Body"] for message in await drained(it.sdk, DEAD)] == ["3"]


async def test_a_deleted_queue_is_no_source_of_its_dead_letter_queue_any_more() -> None:
    async with dead_lettered() as it:
        await it.sdk.ok("DeleteQueue", QueueUrl=JOBS)
        assert not [name for name in await it.client.labels("dead") if name.startswith("sqs.source.")]
        await it.sdk.ok("PurgeQueue", QueueUrl=DEAD)
        refused = await it.sdk.ask("StartMessageMoveTask", SourceArn=DEAD_ARN)
        assert refused.code == "InvalidParameterValue", "it is the dead-letter queue of none"


async def test_a_queue_that_a_native_client_deleted_and_made_anew_is_no_source() -> None:
    async with dead_lettered() as it:
        await it.client.delete_topic("jobs")
        await trio.sleep(1)
        await it.sdk.ok("PurgeQueue", QueueUrl=DEAD)
        assert (await it.sdk.ask("StartMessageMoveTask", SourceArn=DEAD_ARN)).code == "InvalidParameterValue"
        await it.client.create_topic("jobs")
        await it.client.create_group("jobs", "sqs")
        await it.client.publish("jobs", b"x")
        await (await it.client.fetch("jobs", "sqs"))[0].dead_letter(ValueError("x"))
        await trio.sleep(1)
        assert await it.sdk.ok("ListDeadLetterSourceQueues", QueueUrl=DEAD) == {"queueUrls": []}
        assert not await drained(it.sdk, DEAD)
        await it.sdk.ok("PurgeQueue", QueueUrl=DEAD)
        assert (await it.client.backlog("jobs", "sqs")).dead == 1
        await it.sdk.ok("CreateQueue", QueueName="other")
        policy = json.dumps({"deadLetterTargetArn": DEAD_ARN[:-4] + "other", "maxReceiveCount": 3})
        await it.sdk.ok("SetQueueAttributes", QueueUrl=JOBS, Attributes={"RedrivePolicy": policy})
        for queue, urls in (("dead", []), ("other", [JOBS])):
            answer = await it.sdk.ok("ListDeadLetterSourceQueues", QueueUrl=f"{URL}/{queue}")
            assert answer == {"queueUrls": urls}


async def test_a_queue_that_nothing_has_read_is_purged() -> None:
    async with world() as it:
        await it.client.create_topic("jobs")
        await it.client.publish("jobs", b"x")
        await it.sdk.ok("PurgeQueue", QueueUrl=JOBS)
        assert not await receive(it.sdk)
