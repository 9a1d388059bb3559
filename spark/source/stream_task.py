"""One task of a stream: deaths and messages out of parts of segments. Imported by the executors alone."""

from __future__ import annotations

import os
import zlib
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from quorumq.core.values.errors import StorageError
from quorumq.core.values.types import BatchHeader, PartitionId, Span
from quorumq.storage.scan import Bad, Frame
from quorumq.storage.segment import salt_of, segment_name
from quorumq.wire.batch import Corrupt, Message, record_of

from .arrow import BYTES_MAX, Batches, known_time
from .causes import PUBLISHED, ROWS, Death, DeathRow, Producer, death_of, rows_batch, text_bytes
from .deaths import raw_causes
from .follow import deaths_in
from .journals import RECORDS_MERGED, OpenFile, SegmentGone, batch_of
from .options import Options
from .reader import BATCHES, CONTENT
from .stream import StreamTask

Copy = tuple[OpenFile, int, BatchHeader, int]
"""A copy of a message: the file, the offset of the batch's body, its header, and the index in it."""


class StreamReader:
    """Reads one task."""

    def __init__(self, task: StreamTask, options: Options, out: Batches) -> None:
        self.task = task
        self.content = options.bodies and out.wants(*CONTENT)
        self.schema = out.schema
        self.files: dict[tuple[str, int], OpenFile] = {}

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the task."""
        try:
            deaths = list(self._deaths())
            self.copies: dict[tuple[Producer, int], list[Copy]] = {
                (producer, death.seq): [] for death, producer, _ in deaths
            }
            self._find()
            block: list[DeathRow] = []
            size = 0
            for death, producer, cause in deaths:
                message, crc, published = self._message(self.copies[producer, death.seq])
                if death.published_at is None:
                    death = death._replace(published_at=known_time(published))
                block.append((death, cause, message, crc))
                size += text_bytes(cause) + (0 if message is None else len(message.payload))
                if size > BYTES_MAX or len(block) == ROWS:
                    yield rows_batch(self.schema, block)
                    block, size = [], 0
            if block:
                yield rows_batch(self.schema, block)
        finally:
            for file in self.files.values():
                file.close()

    def _frames(self, path: str, directory: int, parts: tuple[tuple[int, int, int], ...]) -> Iterator[Any]:
        """Yield the records in parts of segments, each with its file; None for a file that is gone."""
        for segment, first, stop in parts:
            try:
                file = self.files.get((path, segment)) or self._open(path, segment)
            except SegmentGone:
                yield None
                continue
            scan = file.scan(stop, salt_of(directory, segment))
            while first < stop:
                frame = scan.frame(first)
                if isinstance(frame, Bad):
                    raise StorageError(
                        f"{file.name}, byte {first}: it changed while it was read: {frame.reason}"
                    )
                yield file, frame
                first = frame.end

    def _open(self, path: str, segment: int) -> OpenFile:
        held = dict(self.task.held).get(segment_name(segment), "") if path == self.task.path else ""
        there = os.path.exists(os.path.join(path, segment_name(segment)))
        file = OpenFile(path, segment) if there or not held else OpenFile(path, segment, held)
        self.files[path, segment] = file
        return file

    def _deaths(self) -> Iterator[tuple[Death, Producer, Any]]:
        """Yield the deaths to give out."""
        task = self.task
        codes = iter(zlib.decompress(task.codes))
        for item in self._frames(task.path, task.directory, task.parts):
            if item is None:
                raise SegmentGone(
                    f"{task.path}: the node deleted a segment with letters of this batch before they were read: run "
                    "the query again, with option('onGap', 'reread') if its journal does not reach back"
                )
            file, frame = item
            if frame.type == RECORDS_MERGED:
                yield from self._in_record(file.name, frame, codes)

    def _in_record(
        self, name: str, frame: Frame, codes: Iterator[int]
    ) -> Iterator[tuple[Death, Producer, Any]]:
        (topic, number), group = frame.fields[2:4]
        key = PartitionId(topic, number)
        causes = iter(
            cause
            for cause, (span, _) in zip(raw_causes(name, frame), frame.fields[4], strict=True)
            if cause is not None
            for _ in range(span[1], span[2])
        )
        for rank, producer_id, seq, _ in deaths_in(frame.fields):
            cause, code = next(causes), next(codes)
            if code:
                fate, producer = self.task.fates[code - 1], Producer(key, producer_id)
                death = death_of(
                    producer,
                    fate.topic,
                    seq,
                    group,
                    rank,
                    fate.resolution,
                    cause[PUBLISHED],
                    list(fate.nodes),
                )
                yield death, producer, cause

    # ------------------------------------------------------------------ messages

    def _find(self) -> None:
        """Note where copies of the messages are, those in the directory of the deaths first."""
        lookups: dict[Producer, list[int]] = {}
        for producer, seq in self.copies:
            lookups.setdefault(producer, []).append(seq)
        for seqs in lookups.values():
            seqs.sort()
        keys = {producer.key for producer in lookups}
        for path, directory, parts in self.task.bodies:
            for item in self._frames(path, directory, parts):
                if item is not None and item[1].type in BATCHES:
                    file, frame = item
                    header = batch_of(file.name, frame)[0].batch.header
                    if header.partition in keys:
                        self._spans(file, frame.body_offset, header, lookups)

    def _spans(
        self, file: OpenFile, body: int, header: BatchHeader, lookups: dict[Producer, list[int]]
    ) -> None:
        first = 0
        section: Span
        for section in header.sections:
            producer = Producer(header.partition, section.producer_id)
            seqs = lookups.get(producer, ())
            for at in range(bisect_left(seqs, section.start), bisect_left(seqs, section.stop)):
                copy = (file, body, header, first + seqs[at] - section.start)
                self.copies[producer, seqs[at]].append(copy)
            first += section.size

    def _message(self, copies: list[Copy]) -> tuple[Message | None, str | None, int]:
        """Return a message from its first copy that is whole, the CRC of its record, and its time of publish."""
        crc = None
        published = min((header.published_ms for _, _, header, _ in copies), default=0)
        for file, body, header, index in copies:
            crc = f"{header.crc_of(index):08x}"
            if not self.content:
                break
            low, high = header.end_of(index - 1), header.end_of(index)
            try:
                return record_of(header, index, file.read(body + low, high - low)), crc, published
            except Corrupt:
                continue  # the table `problems` says it; another node may have it whole
        return None, crc, published
