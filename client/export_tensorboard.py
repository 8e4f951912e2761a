"""Export of jobs' metrics to TensorBoard's event files: a file for each job, written without TensorBoard.

A record is a length, its checksum, an Event (event.proto) and its checksum, as in TensorFlow's TFRecord.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from .connection import Connection
from .reported import Value, reported

NAME = "events.out.tfevents.0.stoker"  #: one file for each job, replaced when the job is exported again


def _sums() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)  # noqa: PLW2901 - the Castagnoli polynomial
        table.append(byte)
    return table


_TABLE = _sums()


def check_sum(data: bytes) -> int:
    """CRC32C, masked as in TFRecord."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def _text(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", check_sum(length)) + event + struct.pack("<I", check_sum(event))


def scalar(value: Value) -> bytes:
    """The record of one value."""
    summary = _text(1, _text(1, value.name.encode()) + b"\x15" + struct.pack("<f", max(-3.4e38, min(3.4e38, value.value))))
    return _record(b"\x09" + struct.pack("<d", value.moment) + b"\x10" + _varint(value.step) + _text(5, summary))


def export(client: Connection, row: dict[str, Any], out: Path, *, follow: bool = False) -> Iterator[int]:
    """Write the event file of a job into a directory of ``out``; yields the number of values whenever it has grown."""
    folder = out / f"{row['id']}-{re.sub(r'[^A-Za-z0-9._-]', '_', row['name'])}"
    folder.mkdir(parents=True, exist_ok=True)
    written = 0
    file: BinaryIO
    with open(folder / NAME, "wb") as file:
        file.write(_record(b"\x09" + struct.pack("<d", row["submitted_at"]) + _text(3, b"brain.Event:2")))
        for batch in reported(client, row["id"], follow=follow):
            file.write(b"".join(map(scalar, batch.values)))
            file.flush()
            written += len(batch.values)
            yield written
