"""SQS in front of a cluster in this process, in virtual time."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import trio

from quorumq.gateway.gateway import running
from quorumq.gateway.settings import Settings
from quorumq.gateway.sqs.app import SqsApp
from tests.gateway.sdk import JOBS, URL, Answer, Sdk, World, counts, receive, world

MIB = 1024 * 1024


async def test_a_message_is_sent_received_and_deleted() -> None:
    async with world() as it:
        assert await it.sdk.ok("CreateQueue", QueueName="jobs") == {"QueueUrl": JOBS}
        attributes = {
            "n": {"DataType": "Number.int", "StringValue": "7"},
            "raw": {"DataType": "Binary", "BinaryValue": "AAE="},
        }
        sent = await it.sdk.ok(
            "SendMessage", QueueUrl=JOBS, MessageBody="käse", MessageAttributes=attributes, MessageGroupId="g"
        )
        (message,) = await receive(it.sdk, AttributeNames=["All"], MessageAttributeNames=["All"])
        assert message["Body"] == "käse"
        assert message["MD5OfBody"] == sent["MD5OfMessageBody"] == hashlib.md5("käse".encode()).hexdigest()
        assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
        assert (message["MessageId"], message["MessageAttributes"]) == (sent["MessageId"], attributes)
        assert message["Attributes"]["ApproximateReceiveCount"] == "1"
        assert message["Attributes"]["MessageGroupId"] == "g"
        assert await counts(it.sdk) == [0, 1, 0]
        for _ in range(2):  # deleting twice is deleting once
            await it.sdk.ok("DeleteMessage", QueueUrl=JOBS, ReceiptHandle=message["ReceiptHandle"])
        assert await counts(it.sdk) == [0, 0, 0]


async def test_native_clients_share_the_queue() -> None:
    async with world("jobs") as it:
        await it.client.publish("jobs", b"\xff\0", headers={"n": 7}, key=b"k")
        await it.client.publish("jobs", b"text")
        bodies = {message["Body"]: message for message in await receive(it.sdk, MessageAttributeNames=["n"])}
        binary = bodies[base64.b64encode(b"\xff\0").decode()]
        assert binary["MessageAttributes"]["quorumq-encoding"]["StringValue"] == "base64"
        assert binary["MessageAttributes"]["n"] == {"DataType": "Number", "StringValue": "7"}
        assert "MessageAttributes" not in bodies["text"]
        number = {"DataType": "Number", "StringValue": "8"}
        await it.sdk.ok("SendMessage", QueueUrl=JOBS, MessageBody="out", MessageAttributes={"n": number})
        (message,) = await it.client.fetch("jobs", "sqs")
        assert (message.payload, message.headers["n"]) == (b"out", "8")


async def test_the_query_protocol_does_the_same_in_xml() -> None:
    async with world() as it:
        created = await it.sdk.query("CreateQueue", QueueName="jobs")
        assert created.xml.findtext("CreateQueueResult/QueueUrl") == JOBS
        await it.sdk.query("SendMessage", path="/000000000000/jobs", MessageBody="a<b\r\n&c")
        answer = await it.sdk.query("ReceiveMessage", QueueUrl=JOBS, **{"AttributeName.1": "All"})
        message = answer.xml.find("ReceiveMessageResult/Message")
        assert message is not None
        assert message.findtext("Body") == "a<b\r\n&c"
        assert "ApproximateReceiveCount" in [one.findtext("Name") for one in message.iter("Attribute")]
        handle = message.findtext("ReceiptHandle") or ""
        assert (await it.sdk.query("DeleteMessage", QueueUrl=JOBS, ReceiptHandle=handle)).status == 200
        refused = await it.sdk.query("SendMessage", QueueUrl=f"{URL}/none", MessageBody="x")
        assert refused.status == 400
        assert refused.xml.findtext("Error/Code") == "AWS.SimpleQueueService.NonExistentQueue"
        assert refused.xml.findtext("Error/Type") == "Sender"
        assert (await it.sdk.query("ListQueues")).xml.findtext("ListQueuesResult/QueueUrl") == JOBS


async def test_an_empty_result_has_its_element_in_xml_and_none_has_no_element() -> None:
    """Old SDKs of AWS failed by a KeyError at each poll of an empty queue."""
    arn = "arn:aws:sqs:r:000000000000:jobs"
    empty = {
        "ReceiveMessage": {"QueueUrl": JOBS}, "ListQueues": {"QueueNamePrefix": "none"},
        "ListQueueTags": {"QueueUrl": JOBS}, "GetQueueAttributes": {"QueueUrl": JOBS, "AttributeNames": ""},
        "ListDeadLetterSourceQueues": {"QueueUrl": JOBS}, "ListMessageMoveTasks": {"SourceArn": arn},
    }  # fmt: skip
    none = {
        "PurgeQueue": {"QueueUrl": JOBS}, "SetQueueAttributes": {"QueueUrl": JOBS, "Attributes": ""},
        "TagQueue": {"QueueUrl": JOBS, "Tag.1.Key": "k", "Tag.1.Value": "v"},
        "UntagQueue": {"QueueUrl": JOBS, "TagKey.1": "k"}, "DeleteQueue": {"QueueUrl": JOBS},
    }  # fmt: skip
    async with world() as it:
        await it.sdk.ok("CreateQueue", QueueName="jobs")
        for action, params in {**empty, **none}.items():
            answer = await it.sdk.query(action, **params)
            assert answer.status == 200, answer.body
            result = answer.xml.find(f"{action}Result")
            assert (result is not None) == (action in empty), action
            assert not len(result if result is not None else ()), action


async def test_entries_of_a_batch_have_outcomes_of_their_own() -> None:
    async with world("jobs") as it:
        entries = [{"Id": "a", "MessageBody": "1"}, {"Id": "b", "MessageBody": "\0"}]
        entries += [
            {"Id": "c", "MessageBody": "3", "DelaySeconds": 60},
            {"Id": "d", "MessageBody": "x", "DelaySeconds": 901},
        ]
        answer = await it.sdk.ok("SendMessageBatch", QueueUrl=JOBS, Entries=entries)
        assert [one["Id"] for one in answer["Successful"]] == ["a", "c"]
        assert {one["Id"]: one["Code"] for one in answer["Failed"]} == {
            "b": "InvalidMessageContents", "d": "InvalidParameterValue",
        }  # fmt: skip
        assert await counts(it.sdk) == [1, 0, 1]
        (message,) = await receive(it.sdk)
        handles = {
            "a": message["ReceiptHandle"],
            "b": "no handle",
            "c": message["ReceiptHandle"][:-9] + "x.1",
        }
        changes = [
            {"Id": name, "ReceiptHandle": text, "VisibilityTimeout": 50 + n}
            for n, (name, text) in enumerate(handles.items())
        ]
        for action, more in (("ChangeMessageVisibilityBatch", changes), ("DeleteMessageBatch", changes)):
            answer = await it.sdk.ok(action, QueueUrl=JOBS, Entries=more)
            assert [one["Id"] for one in answer["Successful"]] == ["a"]
            assert {(one["Id"], one["Code"], one["SenderFault"]) for one in answer["Failed"]} == {
                ("b", "ReceiptHandleIsInvalid", True), ("c", "ReceiptHandleIsInvalid", True),
            }  # fmt: skip


BATCHES: dict[str, Any] = {
    "EmptyBatchRequest": [],
    "TooManyEntriesInBatchRequest": [{"Id": str(n), "MessageBody": "x"} for n in range(11)],
    "BatchEntryIdsNotDistinct": [{"Id": "a", "MessageBody": "x"}] * 2,
    "InvalidBatchEntryId": [{"Id": "a b", "MessageBody": "x"}],
    "BatchRequestTooLong": [{"Id": str(n), "MessageBody": 600_000 * "x"} for n in range(2)],
    "BatchRequestTooLong by attributes": [
        {
            "Id": "a",
            "MessageBody": (MIB - 8) * "x",
            "MessageAttributes": {"k": {"DataType": "String", "StringValue": "x"}},
        },
        {"Id": "b", "MessageBody": "x"},
    ],
    "MissingParameter": [{"MessageBody": "x"}],
    "InvalidParameterValue": ["x"],
}


async def test_batches_that_cannot_be_are_refused_whole() -> None:
    async with world("jobs") as it:
        for code, entries in BATCHES.items():
            answer = await it.sdk.ask("SendMessageBatch", QueueUrl=JOBS, Entries=entries)
            assert (answer.status, answer.code) == (400, code.split()[0])
        assert await counts(it.sdk) == [0, 0, 0]


async def test_a_message_is_visible_when_its_timeout_says() -> None:
    async with world("jobs") as it:
        await it.sdk.ok("SendMessage", QueueUrl=JOBS, MessageBody="x")

        async def taken(after: float, **params: Any) -> dict[str, Any]:
            """Receive the message, which has to be delivered after ``after`` seconds."""
            began = trio.current_time()
            (message,) = await receive(it.sdk, WaitTimeSeconds=20, **params)
            assert abs(trio.current_time() - began - after) < 0.6
            return message

        async def change(message: dict[str, Any], seconds: int) -> Answer:
            return await it.sdk.ask(
                "ChangeMessageVisibility",
                QueueUrl=JOBS,
                ReceiptHandle=message["ReceiptHandle"],
                VisibilityTimeout=seconds,
            )

        message = await taken(0, VisibilityTimeout=5)
        message = await taken(5, VisibilityTimeout=5)
        assert (await change(message, 10)).status == 200
        message = await taken(10, VisibilityTimeout=2)
        assert (await change(message, 100)).status == 200
        assert (await change(message, 3)).status == 200, "sooner than the change before"
        message = await taken(3, VisibilityTimeout=30)
        assert (await change(message, 3)).status == 200
        message = await taken(3, VisibilityTimeout=30)
        assert (await change(message, 0)).status == 200
        message = await taken(0, VisibilityTimeout=0)
        message = await taken(0, VisibilityTimeout=1)
        await trio.sleep(2)
        late = await change(message, 10)
        assert (late.status, late.code) == (400, "MessageNotInflight")
        assert "of group 'sqs' is over" in late.json["message"]
        message = await taken(0, VisibilityTimeout=0)
        again = await taken(0)
        await it.sdk.ok("DeleteMessage", QueueUrl=JOBS, ReceiptHandle=message["ReceiptHandle"])
        gone = await change(again, 10)
        assert gone.code == "InvalidParameterValue"
        assert gone.json["message"] == (
            f"Value {again['ReceiptHandle']} for parameter ReceiptHandle is invalid. Reason: Message does not exist or "
            "is not available for visibility timeout change."
        )
        await it.sdk.ok("SendMessage", QueueUrl=JOBS, MessageBody="x")
        deleted = await taken(0)
        await it.sdk.ok("DeleteMessage", QueueUrl=JOBS, ReceiptHandle=deleted["ReceiptHandle"])
        for one, seconds in ((again, 0), (message, 10), (deleted, 10), (deleted, 0)):
            gone = await change(one, seconds)
            assert (gone.code, "Message does not exist" in gone.json["message"]) == (
                "InvalidParameterValue",
                True,
            )


async def test_a_change_of_visibility_waits_for_no_node_that_hangs() -> None:
    async with world("jobs") as it:
        await it.sdk.ok("SendMessage", QueueUrl=JOBS, MessageBody="x")
        (message,) = await receive(it.sdk, VisibilityTimeout=30)
        await it.nodes.cut("c")
        for seconds in (40, 3):
            change = {"ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": seconds}
            began = trio.current_time()
            await it.sdk.ok("ChangeMessageVisibility", QueueUrl=JOBS, **change)
            assert trio.current_time() - began < 2
        assert await receive(it.sdk, WaitTimeSeconds=5)


async def test_a_long_poll_may_be_parked_for_all_of_its_wait() -> None:
    async with world("jobs", hold_time_max=600.0) as it:
        assert not await receive(it.sdk, VisibilityTimeout=600, WaitTimeSeconds=20)
        assert trio.current_time() >= 20


async def test_a_delayed_message_comes_when_its_delay_is_over() -> None:
    async with world("jobs") as it:
        await it.sdk.ok("SendMessage", QueueUrl=JOBS, MessageBody="x", DelaySeconds=9)
        assert not await receive(it.sdk, WaitTimeSeconds=8)
        assert await receive(it.sdk, WaitTimeSeconds=2)


def poll(**params: Any) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a ReceiveMessage."""
    return json.dumps({"QueueUrl": JOBS, **params}).encode(), {"x-amz-target": "AmazonSQS.ReceiveMessage"}


async def test_a_long_poll_ends_when_its_client_hangs_up_and_takes_no_message_with_it() -> None:
    async with world("jobs") as it:
        hung_up = trio.Event()
        answers = []

        async def leaving() -> None:
            answers.append(
                await it.sdk.send(*poll(WaitTimeSeconds=20, VisibilityTimeout=60), hung_up=hung_up)
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(leaving)
            await trio.sleep(2)
            hung_up.set()
        assert [answer.status for answer in answers] == [0]
        assert trio.current_time() < 3
        await it.sdk.ok("SendMessage", QueueUrl=JOBS, MessageBody="x")
        (message,) = await receive(it.sdk, AttributeNames=["All"])
        assert message["Attributes"]["ApproximateReceiveCount"] == "1"


async def test_a_message_that_meets_its_leaving_client_is_given_back_uncounted() -> None:
    async with world("jobs") as it:
        await it.sdk.ok("SendMessage", QueueUrl=JOBS, MessageBody="x")
        for _ in range(3):
            hung_up = trio.Event()
            hung_up.set()
            await it.sdk.send(*poll(VisibilityTimeout=60), hung_up=hung_up)
        (message,) = await receive(it.sdk, WaitTimeSeconds=1, AttributeNames=["All"])
        assert message["Attributes"]["ApproximateReceiveCount"] == "1"


async def test_a_long_poll_is_answered_when_the_gateway_stops() -> None:
    async with world("jobs") as it:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_after, it, 2.0)
            assert not await receive(it.sdk, WaitTimeSeconds=20)
        assert 2 <= trio.current_time() < 3
        await it.sdk.ok("SendMessage", QueueUrl=JOBS, MessageBody="x")


async def stop_after(it: World, seconds: float) -> None:
    await trio.sleep(seconds)
    it.gateway.stopping.set()


async def test_a_handle_is_good_at_any_gateway() -> None:
    async with world() as it, running(Settings(nodes=("b:7401",)), lambda user: it.nodes.connect()) as second:
        await it.sdk.ok("CreateQueue", QueueName="jobs")
        await it.sdk.ok("SendMessage", QueueUrl=JOBS, MessageBody="x")
        (message,) = await receive(it.sdk)
        other = Sdk(SqsApp(second))
        named = {"QueueUrl": JOBS, "ReceiptHandle": message["ReceiptHandle"]}
        await other.ok("ChangeMessageVisibility", **named, VisibilityTimeout=50)
        await other.ok("DeleteMessage", **named)
        assert await counts(other) == [0, 0, 0]


async def test_requests_are_to_be_repeated_while_too_few_nodes_answer() -> None:
    async with world("jobs") as it:
        await it.sdk.ok("SendMessage", QueueUrl=JOBS, MessageBody="x")
        (message,) = await receive(it.sdk)
        for node in "bc":
            await it.nodes.cut(node)
        entries = [{"Id": "a", "MessageBody": "x", "ReceiptHandle": message["ReceiptHandle"]}]
        for action, params in {
            "SendMessage": {"MessageBody": "x"},
            "DeleteMessage": {"ReceiptHandle": message["ReceiptHandle"]},
            "SendMessageBatch": {"Entries": entries},
            "DeleteMessageBatch": {"Entries": entries},
        }.items():
            answer = await it.sdk.ask(action, QueueUrl=JOBS, **params)
            assert (answer.status, answer.code) == (503, "ServiceUnavailable")
            assert answer.headers["x-amzn-query-error"] == "ServiceUnavailable;Receiver"
            assert answer.headers["retry-after"] == "1"
        for node in "bc":
            await it.nodes.mend(node)
        await it.sdk.ok("DeleteMessage", QueueUrl=JOBS, ReceiptHandle=message["ReceiptHandle"])


async def test_a_deleted_queue_is_gone_and_a_new_one_of_its_name_is_another() -> None:
    async with world() as it:
        for number in range(2):
            await it.sdk.ok("CreateQueue", QueueName="jobs")
            await it.sdk.ok("SendMessage", QueueUrl=JOBS, MessageBody=str(number))
            assert [message["Body"] for message in await receive(it.sdk)] == [str(number)]
            await it.sdk.ok("SendMessage", QueueUrl=JOBS, MessageBody="left over")
            await it.sdk.ok("DeleteQueue", QueueUrl=JOBS)
            await trio.sleep(2)
            for action, params in (
                ("SendMessage", {"MessageBody": "x"}),
                ("ReceiveMessage", {}),
                ("PurgeQueue", {}),
            ):
                answer = await it.sdk.ask(action, QueueUrl=JOBS, **params)
                assert (answer.status, answer.code) == (400, "QueueDoesNotExist"), action
        assert await it.sdk.ok("ListQueues") == {}


async def test_a_queue_that_a_native_client_made_anew_takes_messages_at_once() -> None:
    async with world("jobs") as it:
        await it.sdk.ok("SendMessage", QueueUrl=JOBS, MessageBody="x")
        await it.client.delete_topic("jobs")
        await it.client.create_topic("jobs")
        await it.sdk.ok("SendMessage", QueueUrl=JOBS, MessageBody="y")
        assert [message["Body"] for message in await receive(it.sdk)] == ["y"]


async def test_a_queue_whose_group_is_deleted_is_not_there() -> None:
    async with world("jobs") as it:
        await it.client.delete_group("jobs", "sqs")
        with trio.fail_after(20):
            answer = await it.sdk.ask("ReceiveMessage", QueueUrl=JOBS)
        assert (answer.status, answer.code) == (400, "QueueDoesNotExist")


async def test_sending_never_makes_a_queue() -> None:
    async with world() as it:
        answer = await it.sdk.ask("SendMessage", QueueUrl=JOBS, MessageBody="x")
        assert answer.code == "QueueDoesNotExist"
        assert not (await it.client.metadata()).topics


async def test_queues_are_listed_in_pages_by_name() -> None:
    async with world() as it:
        for name in ("b", "a", "ab", "c.d"):
            await it.client.create_topic(name)
        urls, token = [], {}
        while True:
            answer = await it.sdk.ok("ListQueues", MaxResults=2, **token)
            urls += answer["QueueUrls"]
            if "NextToken" not in answer:
                break
            token = {"NextToken": answer["NextToken"]}
        assert urls == [f"{URL}/{name}" for name in ("a", "ab", "b")], "a queue's name has no dot"
        assert len((await it.sdk.ok("ListQueues", QueueNamePrefix="a"))["QueueUrls"]) == 2
        assert (await it.sdk.ask("ListQueues", NextToken="\u20ac")).code == "InvalidParameterValue"


async def test_a_queue_is_refused_with_other_attributes_and_a_refused_one_is_not_there() -> None:
    """A queue made without attributes took those of the next CreateQueue. One whose policy named no queue was made."""
    async with world("jobs") as it:
        other = await it.sdk.ask("CreateQueue", QueueName="jobs", Attributes={"VisibilityTimeout": "31"})
        assert other.code == "QueueNameExists"
        await it.sdk.ok("CreateQueue", QueueName="jobs", Attributes={"VisibilityTimeout": "30"})
        policy = json.dumps({"deadLetterTargetArn": "arn:aws:sqs:r:0:none", "maxReceiveCount": 3})
        refused = await it.sdk.ask("CreateQueue", QueueName="new", Attributes={"RedrivePolicy": policy})
        assert refused.code == "InvalidParameterValue"
        assert await it.sdk.ok("ListQueues") == {"QueueUrls": [JOBS]}
        await it.client.create_topic("native")  # it is no queue yet, and becomes one with attributes
        await it.sdk.ok("CreateQueue", QueueName="native")
        await it.sdk.ok("CreateQueue", QueueName="native", Attributes={"VisibilityTimeout": "31"})


async def test_attributes_that_are_settings_of_a_topic_are_kept_there() -> None:
    async with world() as it:
        given = {"MessageRetentionPeriod": "60", "VisibilityTimeout": "30"}
        for _ in range(2):
            await it.sdk.ok("CreateQueue", QueueName="jobs", Attributes=given)
        other = await it.sdk.ask("CreateQueue", QueueName="jobs", Attributes={"MessageRetentionPeriod": "90"})
        assert other.code == "QueueNameExists"
        await it.sdk.ok("SendMessage", QueueUrl=JOBS, MessageBody="x")
        await trio.sleep(61)
        assert not await receive(it.sdk)
        assert await counts(it.sdk) == [0, 0, 0]
        assert (await it.client.backlog("jobs", "sqs")).dead == 0, "an expired message is no dead letter"
        await it.sdk.ok("SetQueueAttributes", QueueUrl=JOBS, Attributes={"MessageRetentionPeriod": 120})
        answer = await it.sdk.ok(
            "GetQueueAttributes", QueueUrl=JOBS, AttributeNames=["MessageRetentionPeriod"]
        )
        assert answer == {"Attributes": {"MessageRetentionPeriod": "120"}}


async def test_a_message_of_a_queue_without_a_redrive_policy_comes_for_ever() -> None:
    async with world("jobs") as it:
        await it.sdk.ok("SendMessage", QueueUrl=JOBS, MessageBody="x")
        for number in range(1, 10):
            (message,) = await receive(it.sdk, VisibilityTimeout=0, AttributeNames=["All"])
            assert message["Attributes"]["ApproximateReceiveCount"] == str(number)


async def test_a_message_has_the_trace_of_its_request_unless_it_names_its_own() -> None:
    async with world("jobs") as it:

        async def traces(trace: str, action: str, **params: Any) -> list[str | None]:
            headers = {"x-amz-target": f"AmazonSQS.{action}", "x-amzn-trace-id": trace}
            assert (
                await it.sdk.send(json.dumps({"QueueUrl": JOBS, **params}).encode(), headers)
            ).status == 200
            messages = await receive(it.sdk, AttributeNames=["AWSTraceHeader"])
            return [message.get("Attributes", {}).get("AWSTraceHeader") for message in messages]

        assert await traces("Root=1", "SendMessage", MessageBody="x") == ["Root=1"]
        own = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=2"}}
        entries = [
            {"Id": "a", "MessageBody": "x"},
            {"Id": "b", "MessageBody": "x", "MessageSystemAttributes": own},
        ]
        assert sorted(map(str, await traces("Root=1", "SendMessageBatch", Entries=entries))) == [
            "Root=1",
            "Root=2",
        ]
        assert await traces(501 * "x", "SendMessage", MessageBody="x") == [None]


async def test_a_page_in_a_browser_may_not_ask_a_gateway_that_wants_no_signatures() -> None:
    async with world("jobs") as it:
        deletes = f"Action=DeleteQueue&QueueUrl={JOBS}"
        form = {"content-type": "application/x-www-form-urlencoded"}
        answers = [
            await it.sdk.send(b"", {}, method="GET", query=deletes),
            await it.sdk.send(deletes.encode(), {**form, "origin": "null"}),
            await it.sdk.send(deletes.encode(), {**form, "sec-fetch-site": "cross-site"}),
        ]
        assert [answer.status for answer in answers] == [403] * 3
        assert (await it.sdk.ok("ListQueues"))["QueueUrls"] == [JOBS]


# ------------------------------------------------------------------------ attributes and dead letters


async def test_attributes_and_tags_are_kept_in_the_cluster_and_not_in_the_gateway() -> None:
    async with world() as it, running(Settings(nodes=("b:7401",)), lambda user: it.nodes.connect()) as second:
        given = {
            "VisibilityTimeout": "43200", "DelaySeconds": "3", "MaximumMessageSize": "1024",
            "ReceiveMessageWaitTimeSeconds": "4", "MessageRetentionPeriod": "120",
        }  # fmt: skip
        await it.sdk.ok("CreateQueue", QueueName="jobs", Attributes=given, tags={"team": "käse", "b": ""})
        other = Sdk(SqsApp(second))
        attributes = (await other.ok("GetQueueAttributes", QueueUrl=JOBS, AttributeNames=["All"]))[
            "Attributes"
        ]
        assert given.items() <= attributes.items()
        assert await other.ok("ListQueueTags", QueueUrl=JOBS) == {"Tags": {"b": "", "team": "käse"}}
        await it.sdk.ok("CreateQueue", QueueName="jobs", Attributes=given)
        differing = await it.sdk.ask("CreateQueue", QueueName="jobs", Attributes={"DelaySeconds": "0"})
        assert differing.code == "QueueNameExists"
        too_long = await other.ask("SendMessage", QueueUrl=JOBS, MessageBody=1025 * "x")
        assert (too_long.code, "1024 bytes" in too_long.json["message"]) == ("InvalidParameterValue", True)
        await other.ok("SendMessage", QueueUrl=JOBS, MessageBody="x")
        began = trio.current_time()
        assert await receive(other), "it waits for 4 s, and the message is delayed by 3"
        assert 2.9 < trio.current_time() - began < 4
        await it.sdk.ok("UntagQueue", QueueUrl=JOBS, TagKeys=["b", "none"])
        await other.ok("TagQueue", QueueUrl=JOBS, Tags={"c": "1"})
        assert (await it.sdk.ok("ListQueueTags", QueueUrl=JOBS))["Tags"] == {"c": "1", "team": "käse"}
        await other.ok("SetQueueAttributes", QueueUrl=JOBS, Attributes={"DelaySeconds": "0"})
        answer = await it.sdk.ok("GetQueueAttributes", QueueUrl=JOBS, AttributeNames=["DelaySeconds"])
        assert answer == {"Attributes": {"DelaySeconds": "0"}}
        many = {str(number): "x" for number in range(51)}
        assert (await it.sdk.ask("TagQueue", QueueUrl=JOBS, Tags=many)).code == "InvalidParameterValue"


async def test_a_queue_that_two_gateways_create_at_a_time_or_one_creates_half_way_is_created() -> None:
    async with world() as it, running(Settings(nodes=("b:7401",)), lambda user: it.nodes.connect()) as second:
        other = Sdk(SqsApp(second))
        given = {"VisibilityTimeout": "1800", "MessageRetentionPeriod": "60"}

        async def create(sdk: Sdk, name: str) -> None:
            await sdk.ok("CreateQueue", QueueName=name, Attributes=given)

        for number in range(5):
            async with trio.open_nursery() as nursery:
                for sdk in (it.sdk, other):
                    nursery.start_soon(create, sdk, f"both-{number}")
        await it.client.create_topic("half", on_expiry="drop")
        await create(other, "half")
        answer = await it.sdk.ok("GetQueueAttributes", QueueUrl=f"{URL}/half", AttributeNames=list(given))
        assert answer == {"Attributes": given}
        await it.client.create_topic("native")
        await it.sdk.ok("CreateQueue", QueueName="native")
        assert (await it.client.topic("native")).max_deliveries == 5, "it stays as it is"


async def test_a_message_stays_invisible_beyond_the_longest_hold_though_all_nodes_restart() -> None:
    async with world() as it:
        await it.sdk.ok("CreateQueue", QueueName="jobs", Attributes={"VisibilityTimeout": "300"})
        await it.sdk.ok("SendMessage", QueueUrl=JOBS, MessageBody="x")
        assert await receive(it.sdk)
        for node in "abc":
            await it.nodes.stop(node)
            await it.nodes.start(node)
        assert not await receive(it.sdk, WaitTimeSeconds=20)
        await trio.sleep(270)
        (message,) = await receive(it.sdk, WaitTimeSeconds=20, VisibilityTimeout=3600, AttributeNames=["All"])
        assert trio.current_time() > 299
        assert message["Attributes"]["ApproximateReceiveCount"] == "2"
        changed = {"QueueUrl": JOBS, "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 1}
        await it.sdk.ok("ChangeMessageVisibility", **changed)
        assert await receive(it.sdk, WaitTimeSeconds=2), "visible sooner than it was to be"


async def test_a_message_that_may_end_its_consumers_comes_alone() -> None:
    async with world("jobs") as it:
        for number in range(5):
            await it.sdk.ok("SendMessage", QueueUrl=JOBS, MessageBody=str(number))
        for _ in range(2):
            while await receive(it.sdk, VisibilityTimeout=5):
                pass
            await trio.sleep(6)
        sizes = []
        while messages := await receive(it.sdk, VisibilityTimeout=60, AttributeNames=["All"]):
            sizes.append(len(messages))
        assert sizes == [1] * 5
