"""A cluster of cores in which everything goes through the real codecs: requests, replies, frames of peers, records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quorumq.core.messages import ClientReply, Failed, FetchReply, Slice
from quorumq.core.messages.records import BatchStored, JournalRecord
from quorumq.core.values.errors import BadReceipt, PeerError
from quorumq.core.values.types import NodeId
from quorumq.storage.records import decode_record, encode_record
from quorumq.wire import cbor
from quorumq.wire.codec import decode_message, encode_message, failed, open_request
from quorumq.wire.frames import FrameReader
from quorumq.wire.receipts import sign_fetched
from tests.core.cluster import Cluster

SECRET = b"not a secret: 32 bytes for tests"


def through_the_journal(record: JournalRecord) -> JournalRecord:
    """Encode ``record``, and return it as a start reads it."""
    header, body = encode_record(record, 0)
    decoded: Any = decode_record(cbor.load(header))
    if isinstance(record, BatchStored):
        decoded = decoded._replace(batch=decoded.batch._replace(body=bytes(body)))
    assert decoded == record
    return decoded


def through_the_wire(message: Any, **more: Any) -> Any:
    """Encode ``message``, and return it as the receiver reads it."""
    reader = FrameReader()
    reader.feed(b"".join(encode_message(message, **more)))
    frame = reader.next_frame()
    assert frame is not None
    return decode_message(frame).message


class Written(list[JournalRecord]):
    """The records of a node, as they are read again."""

    def __iadd__(self, records: Iterable[JournalRecord]) -> Written:  # type: ignore[override, misc]
        self.extend(map(through_the_journal, records))
        return self


class Coded(Cluster):
    """A `Cluster` that says and writes nothing but bytes. Receipts in requests are signed, as clients send them."""

    def start(self, name: NodeId) -> None:
        if not isinstance(self.journals[name], Written):
            self.journals[name] = Written(self.journals[name])
        super().start(name)

    def send(self, sender: NodeId, to: NodeId, message: object) -> None:
        stamp = self.nodes[sender].state.clock.value
        super().send(sender, to, through_the_wire(message, stamp=stamp, read=self.reader_of(sender)))

    def reader_of(self, name: NodeId) -> Any:
        def read(part: Slice) -> bytes:
            for record in self.journals[name]:
                if isinstance(record, BatchStored) and record.number == part.batch:
                    header = record.batch.header
                    return bytes(record.batch.body)[
                        header.end_of(part.first - 1) : header.end_of(part.stop - 1)
                    ]
            raise AssertionError(f"{name} answers with batch {part.batch}, which it has not")

        return read

    def ask(self, name: NodeId, request: object) -> ClientReply:
        """Ask as a client does. A request refused at the entrance never reaches the core."""
        try:
            asked = open_request(through_the_wire(request, request=1), keys={0: SECRET})
        except (BadReceipt, PeerError) as error:
            return failed(error)
        key = self.submit(name, asked)
        for _ in range(100):
            if key in self.replies:
                break
            self.advance(0.25)
        reply = self.replies[key]
        if isinstance(reply, FetchReply):
            reply = sign_fetched(reply, secret=SECRET)
        decoded = through_the_wire(reply, request=1, read=self.reader_of(name))
        assert isinstance(decoded, Failed) == isinstance(reply, Failed)
        return decoded
