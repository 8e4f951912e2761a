"""Objects over a Unix socket between two processes: large buffers travel in an anonymous memory file.

A pickle (protocol 5) hands out the buffers of arrays and tensors; together, above 256 KiB, they are written once into a memfd whose
descriptor goes over the socket, and the receiver maps it: its arrays live in that mapping, without another copy, until the last of
them is dropped. A memfd has no name, so a killed process leaves nothing in /dev/shm, and the small /dev/shm of a container does not
bound it. torch.multiprocessing would hold a descriptor or a name for each tensor, at some 0.5 ms of CPU time each.

An object for many processes (`Shared`) is written once; each maps it copy-on-write, so they share its pages until one writes to some.
"""

from __future__ import annotations

import io
import math
import mmap
import os
import pickle
import select
import socket
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

from ....engine.errors import StokerError


class _Place(IntEnum):
    """The place of the buffers."""

    SOCKET = 0
    OWN_FILE = 1  #: a memory file for this receiver alone
    SHARED_FILE = 2


_HEADER = struct.Struct("<QQB")  #: bytes of the pickle, number of buffers, their _Place
_LENGTH = struct.Struct("<Q")
_INLINE = 256 << 10  #: bytes of buffers that go through the socket: about its capacity, so that neither side waits for the other
_ALIGN = 64


class Closed(Exception):
    """The other end is gone."""


class TooLarge(Exception):
    """The pickle has more bytes than it may have."""


class OnDevice(Exception):
    """A tensor is in the memory of a device."""


def dumps(value: Any, *, limit: float = math.inf, on_host: bool = False) -> tuple[bytes, list[memoryview]]:
    """The pickle, and the buffers to which it refers.

    ``limit``: bytes of the pickle, which is a copy (the buffers are not); TooLarge as soon as there are more. ``on_host``: tensors in the
    memory of a device raise OnDevice, since unpickling one makes a context there, of hundreds of MiB.
    """
    buffers: list[pickle.PickleBuffer] = []
    stream = _Stream(limit)
    _Pickler(stream, buffers.append, on_host=on_host).dump(value)
    return stream.getvalue(), [buffer.raw() for buffer in buffers]


def send(to: socket.socket, data: bytes, views: Sequence[memoryview]) -> None:
    """Send the result of `dumps`. Closed: the receiver is gone."""
    lengths = [view.nbytes for view in views]
    if sum(lengths) <= _INLINE:
        _send_all(to, b"".join((_head(data, lengths, _Place.SOCKET), data, *views)))
        return
    file = _filled(views)
    try:
        _send_file(to, _head(data, lengths, _Place.OWN_FILE) + data, file)
    finally:
        os.close(file)


class Packed:
    """An object to be sent by other means than a socket of ours: its pickle and its buffers, large ones in a memory file."""

    def __init__(self, value: Any) -> None:
        self.data, views = dumps(value)
        self.lengths = [view.nbytes for view in views]
        large = sum(self.lengths) > _INLINE
        self.inline: list[bytes | bytearray] = [] if large else [bytearray(view) for view in views]
        self.file = _filled(views) if large else -1

    def __del__(self) -> None:
        if getattr(self, "file", -1) >= 0:
            os.close(self.file)


def unpacked(data: bytes, lengths: Sequence[int], inline: Sequence[Any], file: int = -1) -> Any:
    """The object that was packed."""
    return pickle.loads(data, buffers=inline if file < 0 else _mapped(file, lengths, _Place.OWN_FILE))


class Shared:
    """A result of `dumps` for many receivers: its large buffers are written once, at the first send. Thread-safe."""

    def __init__(self, data: bytes, views: list[memoryview]) -> None:
        self._data, self._views = data, views
        self._lengths = [view.nbytes for view in views]
        self._lock = threading.Lock()
        self._file = -1

    @property
    def sent_bytes(self) -> int:
        """Bytes of which each receiver has a copy, as unpickled objects."""
        return len(self._data)

    @property
    def shared_bytes(self) -> int:
        """Bytes that all receivers share."""
        return sum(self._lengths)

    def same(self, other: Shared) -> bool:
        """Whether both are of the same object, unless the buffers were written to since."""
        if self._data != other._data or self._lengths != other._lengths:
            return False
        return all(_same(mine, theirs) for mine, theirs in zip(self._views, other._views, strict=True))

    def send(self, to: socket.socket) -> None:
        """Closed: nobody is there to take it."""
        if self.shared_bytes <= _INLINE:
            send(to, self._data, self._views)
            return
        with self._lock:
            if self._file < 0:
                self._file = _filled(self._views)
            file = os.dup(self._file)  # it may be let go meanwhile
        try:
            _send_file(to, _head(self._data, self._lengths, _Place.SHARED_FILE) + self._data, file)
        finally:
            os.close(file)

    def let_go(self) -> None:
        """Free the memory, as soon as no receiver has it. It is written anew when it is sent again."""
        with self._lock:
            file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        self.let_go()


def receive(source: socket.socket, *, apart: bool = False) -> Any:
    """The object that was sent; ``apart``: each array and tensor in memory of its own, so that one does not keep the others.

    Closed: the other end is gone. StokerError: no free descriptor. Errors of unpickling are raised.
    """
    first, files, flags, _ = _receive_first(source)
    try:
        if not first:
            raise Closed
        size, count, place = _HEADER.unpack(first + _exactly(source, _HEADER.size - 1))
        lengths = [_LENGTH.unpack_from(raw, 0)[0] for raw in (_exactly(source, _LENGTH.size) for _ in range(count))]
        data = _exactly(source, size)
        if flags & socket.MSG_CTRUNC:  # raised only now, so that the next object begins where this one ends
            raise StokerError("too many open files: the memory file of an item could not be taken; raise `ulimit -n`")
        if place == _Place.SOCKET:
            buffers: Sequence[Any] = [_exactly(source, length) for length in lengths]
        else:
            buffers = _copied(files[0], lengths) if apart else _mapped(files[0], lengths, _Place(place))
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


def _same(one: memoryview, other: memoryview) -> bool:
    import numpy as np  # buffers are arrays' and tensors'

    left, right = np.frombuffer(one, np.uint8), np.frombuffer(other, np.uint8)
    return bool(left.ctypes.data == right.ctypes.data or np.array_equal(left, right))


def _head(data: bytes, lengths: Sequence[int], place: _Place) -> bytes:
    return _HEADER.pack(len(data), len(lengths), place) + b"".join(_LENGTH.pack(length) for length in lengths)


def _send_all(to: socket.socket, data: bytes) -> None:
    try:
        to.sendall(data)
    except OSError as error:
        raise Closed from error


def _send_file(to: socket.socket, data: bytes, file: int) -> None:
    try:
        socket.send_fds(to, [data[:1]], [file])
    except OSError as error:
        raise Closed from error
    _send_all(to, data[1:])


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


def _mapped(file: int, lengths: Sequence[int], place: _Place) -> list[memoryview]:
    # A populated private mapping would be copied at once: without it, pages come when they are read.
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE if place is _Place.OWN_FILE else mmap.MAP_PRIVATE
    try:
        whole = memoryview(mmap.mmap(file, 0, flags=flags))
    except OSError:  # the kernel's limit of mappings, some 65 000 a process: a copy is as good
        whole = memoryview(_read(file, 0, os.fstat(file).st_size))
    at, parts = 0, []
    for length in lengths:
        parts.append(whole[at : at + length])
        at = _aligned(at + length)
    return parts


def _copied(file: int, lengths: Sequence[int]) -> list[bytearray]:
    at, parts = 0, []
    for length in lengths:
        parts.append(_read(file, at, length))
        at = _aligned(at + length)
    return parts


def _read(file: int, at: int, length: int) -> bytearray:
    data, done = bytearray(length), 0
    view = memoryview(data)
    while done < length:
        done += os.preadv(file, [view[done:]], at + done)
    return data


def _aligned(at: int) -> int:
    return -(-at // _ALIGN) * _ALIGN


class _Stream(io.BytesIO):
    """A pickler writes as it goes, 64 KiB or a large object at a time."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self._limit = limit

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self._limit:
            raise TooLarge
        return super().write(data)


class _Pickler(pickle.Pickler):
    """Tensors as buffers: torch itself would pickle their bytes into the stream."""

    def __init__(self, stream: _Stream, buffered: Callable[[pickle.PickleBuffer], None], *, on_host: bool) -> None:
        super().__init__(stream, protocol=5, buffer_callback=buffered)
        self._on_host = on_host

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.Tensor):
            return NotImplemented
        if self._on_host and value.device.type not in ("cpu", "meta"):
            raise OnDevice(f"it holds a tensor on {value.device}, and each process would need a context of its own there")
        if type(value) is not torch.Tensor:
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
