"""Objects over a Unix socket between two processes: what is large travels in an anonymous memory file.

A pickle (protocol 5) hands out the buffers of arrays and tensors; together, above 256 KiB, they are written once into a memfd whose
descriptor goes over the socket, and the receiver maps it: its arrays live in that mapping, without another copy, until the last of
them is dropped. A memfd has no name, so that nothing can be left in /dev/shm, whoever is killed and when, and the small /dev/shm of
a container does not bound it. torch.multiprocessing would hold a descriptor or a name for each tensor, at some 0.5 ms of CPU time each.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import select
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any

_HEADER = struct.Struct("<QQ?")  #: bytes of the pickle, number of buffers, whether they are in a memory file
_LENGTH = struct.Struct("<Q")
_INLINE = 256 << 10  #: bytes of buffers that go through the socket: about what it holds, so that neither side waits for the other
_ALIGN = 64


class Closed(Exception):
    """The other end is gone."""


def dumps(value: Any) -> tuple[bytes, list[memoryview]]:
    """Pickle, and the buffers that it refers to."""
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(value)
    return stream.getvalue(), [buffer.raw() for buffer in buffers]


def send(to: socket.socket, data: bytes, views: Sequence[memoryview]) -> None:
    """What `dumps` made. Closed: nobody is there to take it."""
    large = sum(view.nbytes for view in views) > _INLINE
    head = _HEADER.pack(len(data), len(views), large) + b"".join(_LENGTH.pack(view.nbytes) for view in views)
    try:
        if not large:
            to.sendall(b"".join((head, data, *views)))
            return
        file = _filled(views)
        try:
            socket.send_fds(to, [head[:1]], [file])
        finally:
            os.close(file)
        to.sendall(head[1:] + data)
    except OSError as error:
        raise Closed from error


def receive(source: socket.socket) -> Any:
    """The object that was sent. Closed: the other end is gone. What unpickling raises is raised."""
    first, files, _, _ = _receive_first(source)
    try:
        if not first:
            raise Closed
        size, count, large = _HEADER.unpack(first + _exactly(source, _HEADER.size - 1))
        lengths = [_LENGTH.unpack_from(raw, 0)[0] for raw in (_exactly(source, _LENGTH.size) for _ in range(count))]
        data = _exactly(source, size)
        buffers = _mapped(files[0], lengths) if large else [_exactly(source, length) for length in lengths]
    finally:
        for file in files:
            os.close(file)
    return pickle.loads(data, buffers=buffers)


def wait_for(source: socket.socket, also: int) -> bool:
    """Wait until something can be received, or the descriptor ``also`` is readable; whether it is the former."""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    poll.register(also, select.POLLIN)
    return any(ready == source.fileno() for ready, _ in poll.poll())


def _receive_first(source: socket.socket) -> tuple[bytes, list[int], int, Any]:
    try:
        return socket.recv_fds(source, 1, 1, socket.MSG_CMSG_CLOEXEC)
    except OSError as error:
        raise Closed from error


def _exactly(source: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        try:
            got = source.recv_into(view)
        except OSError as error:
            raise Closed from error
        if not got:
            raise Closed
        view = view[got:]
    return data


def _filled(views: Sequence[memoryview]) -> int:
    file = os.memfd_create("stoker-item", os.MFD_CLOEXEC)
    try:
        at = 0
        for view in views:
            left = view
            while left:
                written = os.pwrite(file, left, at)
                left, at = left[written:], at + written
            at = _aligned(at)
        os.ftruncate(file, max(at, 1))
    except BaseException:
        os.close(file)
        raise
    return file


def _mapped(file: int, lengths: Sequence[int]) -> list[memoryview]:
    try:
        whole = memoryview(mmap.mmap(file, 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE))
    except OSError:  # the kernel's limit of mappings, some 65 000 a process: a copy is as good
        whole = memoryview(bytearray(os.fstat(file).st_size))
        done = 0
        while done < len(whole):
            done += os.preadv(file, [whole[done:]], done)
    at, parts = 0, []
    for length in lengths:
        parts.append(whole[at : at + length])
        at = _aligned(at + length)
    return parts


def _aligned(at: int) -> int:
    return -(-at // _ALIGN) * _ALIGN


class _Pickler(pickle.Pickler):
    """Tensors as buffers: torch itself would pickle their bytes into the stream."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(value) is not torch.Tensor:
            return NotImplemented
        if (
            value.requires_grad
            or value.device.type != "cpu"
            or value.layout is not torch.strided
            or value.is_quantized
            or not value.numel()
        ):
            return NotImplemented
        flat = value.resolve_conj().resolve_neg().contiguous().reshape(-1)
        return _tensor, (pickle.PickleBuffer(flat.view(torch.uint8).numpy()), value.dtype, tuple(value.shape))


def _tensor(buffer: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.frombuffer(buffer, dtype=dtype).reshape(shape)
