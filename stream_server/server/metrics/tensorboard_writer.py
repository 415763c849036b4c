"""TensorBoard's event file, written with TensorBoard's own protocol buffers.

`open_writers` opens it; `Metrics.write` then gives it every record. TensorBoard's own
`EventFileWriter` would bring a thread, and TensorFlow where that is installed; the file needs neither. Its
`RecordWriter` would bring asyncio and a hundred modules more: 0.12 s of each start of a server.
"""

import os
import socket
import struct
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import (  # type: ignore[import-untyped]
    Event,
    SessionLog,
    SourceMetadata,
)
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary  # type: ignore[import-untyped]

from stream_server.server.metrics.histogram import LIMITS, Histogram
from stream_server.server.metrics.log_record import LoggedRun, Record
from stream_server.storage.disk import make_folder, place_of

PNG_SIZE = slice(16, 24)
RGBA = 4

CASTAGNOLI = 0x82F63B78
CRC_BITS = 0xFFFFFFFF
CRC_MASK_DELTA = 0xA282EAD8


class TensorBoardWriter:
    """An event file of its own in the folder `tensorboard`; written in the caller's thread, record by record.

    What files of earlier incarnations have behind batch `run.after` is not shown any more.
    """

    def __init__(self, run: LoggedRun) -> None:
        folder = run.folder / "tensorboard"
        make_folder(folder)
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        place = Path(place_of(folder / name))
        self._file = place.open("wb")
        self._write(Event(file_version="brain.Event:2", source_metadata=SourceMetadata(writer="stream_server")))
        self._write(Event(step=run.after + 1, session_log=SessionLog(status=SessionLog.START)))

    def write(self, record: Record) -> None:
        summary = Summary()
        for name, value in record.values.items():
            summary.value.add(tag=name, simple_value=value)
        for name, histogram in record.histograms.items():
            summary.value.add(tag=name, histo=_histogram(histogram))
        for name, png in record.figures.items():
            summary.value.add(tag=name, image=_image(png))
        self._write(Event(step=record.batch, summary=summary))

    def flush(self) -> None:
        """Do nothing: nothing is kept back."""

    def close(self) -> None:
        self._file.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self._file.write(_frame(event.SerializeToString()))
        self._file.flush()


def _frame(data: bytes) -> bytes:
    """A record of TensorFlow: the length and the data, each with its checksum."""
    length = struct.pack("<Q", len(data))
    return b"".join([length, _checksum(length), data, _checksum(data)])


def _checksum(data: bytes) -> bytes:
    """The CRC-32C of the data, masked as TensorFlow does it."""
    crc = CRC_BITS
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= CRC_BITS
    return struct.pack("<I", ((crc >> 15 | crc << 17) + CRC_MASK_DELTA) & CRC_BITS)


def _crc_of_byte(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ (CASTAGNOLI if crc & 1 else 0)
    return crc


CRC_TABLE = [_crc_of_byte(byte) for byte in range(256)]


def _histogram(histogram: Histogram) -> HistogramProto:
    first, last = min(histogram.counts), max(histogram.counts)
    places = range(max(0, first - 1), last + 1)
    return HistogramProto(
        min=histogram.min,
        max=histogram.max,
        num=histogram.num,
        sum=histogram.sum,
        sum_squares=histogram.sum_squares,
        bucket_limit=[float(LIMITS[i]) for i in places],
        bucket=[histogram.counts[i] for i in places],
    )


def _image(png: bytes) -> Summary.Image:
    width, height = struct.unpack(">II", png[PNG_SIZE])
    return Summary.Image(width=width, height=height, colorspace=RGBA, encoded_image_string=png)
