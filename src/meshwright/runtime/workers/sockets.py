"""Channels between processes: a socket for every pair of workers, and shared memory for large messages on one host.

A frame is a header and, unless its bytes are in shared memory, its body. Nobody waits to send without also reading:
a worker whose message finds no room takes in what others sent it meanwhile, so that lists which pass the check without
bounds on what is under way also run.
"""

from __future__ import annotations

import hmac
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.runtime.host_arrays import ALIGNED_BYTES, HostForm, aligned
from meshwright.runtime.workers.waiting import Waiter, processors

RING_BYTES = 64 << 20
"""Shared memory of one direction; pages that no message has touched take no memory."""
RING_FROM_BYTES = 64 << 10
"""Shorter messages are copied faster through the socket."""
SCRATCH_BYTES = 64 << 10
"""Read from a socket at a time."""
SETUP_S = 60.0
GREETING_S = 10.0
"""Seconds that a connecting process may take to say the secret."""
"""Time for the others to connect."""

_HEAD = struct.Struct("<BxxxIQQ")
_BODY, _SHARED, _READ = 0, 1, 2
"""Kinds of frame: bytes follow; bytes are in the ring; so far the ring has been read."""
_ZEROS = bytes(ALIGNED_BYTES)


class LostPeerError(Exception):
    """The other side of a channel is gone."""

    def __init__(self, peer: int) -> None:
        super().__init__(f"mesh {peer} is gone")
        self.peer = peer


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a worker listens."""

    machine: str
    """Identifier of this boot; workers of one machine share memory."""
    path: str
    """Path of its unix socket."""
    host: str
    port: int


class Listener:
    """What the other workers connect to."""

    def __init__(self, folder: Path, host: str) -> None:
        """Listen.

        Args:
            folder: the folder for the unix socket; only this user may enter it.
            host: address of this machine that the others reach.
        """
        self._unix = socket.socket(socket.AF_UNIX)
        self._unix.bind(str(folder / "worker"))
        self._tcp = socket.create_server((host, 0))
        self._unix.listen()
        self._tcp.listen()
        self.address = Address(
            machine=_machine(), path=str(folder / "worker"), host=host, port=self._tcp.getsockname()[1]
        )

    def connect(self, mesh: int, addresses: Sequence[Address], secret: bytes) -> Wires:
        """Connect with every other worker, while they do the same.

        Args:
            mesh: the mesh of this worker.
            addresses: the addresses of all workers, by mesh.
            secret: known to the workers of one run only.

        Raises:
            TimeoutError: not all have connected in time.
        """
        sockets = {peer: self._call(addresses[peer], secret, mesh) for peer in range(mesh + 1, len(addresses))}
        while len(sockets) < len(addresses) - 1:
            sockets.update(self._answer(secret))
        near = {peer: addresses[peer].machine == self.address.machine for peer in sockets}
        outgoing = {peer: _give_ring(sockets[peer]) for peer in sorted(sockets) if near[peer]}
        incoming = {peer: _take_ring(sockets[peer]) for peer in sorted(sockets) if near[peer]}
        self._unix.close()
        self._tcp.close()
        peers = {peer: _Peer(peer, one, outgoing.get(peer), incoming.get(peer)) for peer, one in sockets.items()}
        return Wires(peers, Waiter(awake=1 + sum(near.values()) <= processors()))

    def _call(self, address: Address, secret: bytes, mesh: int) -> socket.socket:
        if address.machine == self.address.machine:
            one = socket.socket(socket.AF_UNIX)
            one.settimeout(SETUP_S)
            one.connect(address.path)
        else:
            one = socket.create_connection((address.host, address.port), timeout=SETUP_S)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.sendall(secret + struct.pack("<I", mesh))
        return one

    def _answer(self, secret: bytes) -> dict[int, socket.socket]:
        """The next worker that connects; strangers are turned away."""
        ready, _, _ = select.select([self._unix, self._tcp], [], [], SETUP_S)
        if not ready:
            raise TimeoutError(f"not all workers connected within {SETUP_S:.0f} s")
        one, _ = ready[0].accept()
        one.settimeout(GREETING_S)
        try:
            said = one.recv(len(secret) + 4, socket.MSG_WAITALL)
        except OSError:  # who says nothing, or goes, is none of ours
            said = b""
        if len(said) != len(secret) + 4 or not hmac.compare_digest(said[: len(secret)], secret):
            one.close()
            return {}
        one.settimeout(SETUP_S)
        if one.family != socket.AF_UNIX:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return {struct.unpack("<I", said[len(secret) :])[0]: one}


class Wires:
    """All connections of one worker."""

    def __init__(self, peers: dict[int, _Peer], waiter: Waiter) -> None:
        """Connected ones.

        Args:
            peers: the peers by mesh.
            waiter: the waiter for their messages.
        """
        self._peers = peers
        self._by_file = {peer.socket.fileno(): peer for peer in peers.values()}
        self._poll = waiter
        self._parent: int | None = None
        for number in self._by_file:
            self._poll.register(number, select.POLLIN)

    def end_with(self, number: int) -> None:
        """End this process where the other end of a file is closed while a message is waited for.

        Args:
            number: the number of the file.
        """
        self._parent = number
        self._poll.register(number, 0)

    def close(self) -> None:
        """Close every connection; the other sides miss this one."""
        for peer in self._peers.values():
            peer.socket.close()

    def channel(self, peer: int) -> SocketChannel:
        """The channel to a mesh.

        Args:
            peer: the mesh.
        """
        return SocketChannel(self, self._peers[peer])

    def send(self, peer: _Peer, pieces: list[Any], length: int) -> None:
        """Send one message; taking in what arrives while there is no room for it."""
        place = peer.write(pieces, length) if length >= RING_FROM_BYTES else None
        if place is not None:
            self._push(peer, [_HEAD.pack(_SHARED, 0, length, place)])
        elif length < RING_FROM_BYTES:
            self._push(peer, [b"".join([_HEAD.pack(_BODY, 0, length, 0), *pieces])])
        else:
            self._push(peer, [_HEAD.pack(_BODY, 0, length, 0), *pieces])
        peer.tell_read()

    def _push(self, peer: _Peer, frame: list[Any]) -> None:
        rest = [memoryview(piece) for piece in frame]
        peer.in_frame = True
        while rest:
            if peer.lost:
                raise LostPeerError(peer.mesh)
            try:
                sent = peer.socket.sendmsg(rest[:256])
            except BlockingIOError:
                self.take_in(peer)
                continue
            except OSError:
                raise LostPeerError(peer.mesh) from None
            while rest and sent >= len(rest[0]):
                sent -= len(rest.pop(0))
            if sent:
                rest[0] = rest[0][sent:]
        peer.in_frame = False

    def take_in(self, until_room: _Peer | None = None) -> None:
        """Wait until a message arrives, or until there is room to send, and read what is there."""
        if until_room is not None:
            self._poll.modify(until_room.socket.fileno(), select.POLLIN | select.POLLOUT)
        try:
            events = self._poll.events()
        finally:
            if until_room is not None:
                self._poll.modify(until_room.socket.fileno(), select.POLLIN)
        for number, event in events:
            if number == self._parent:
                os._exit(1)
            peer = self._by_file[number]
            if event & ~select.POLLOUT:
                peer.read()
            if peer.lost:
                self._poll.unregister(number)


class SocketChannel:
    """A channel between two processes."""

    def __init__(self, wires: Wires, peer: _Peer) -> None:
        """One end.

        Args:
            wires: all connections of this worker.
            peer: the one meant.
        """
        self._wires, self._peer = wires, peer

    def send(self, values: Sequence[Any], forms: Sequence[HostForm]) -> None:
        """See `Channel`; arrays that are split over devices are gathered on the host."""
        pieces: list[Any] = []
        for value, form in zip(values, forms, strict=True):
            if form.bytes:
                pieces += [form.numbers(value).reshape(-1).view(np.uint8).data, _ZEROS[: -form.bytes % ALIGNED_BYTES]]
        self._wires.send(self._peer, pieces, sum([form.aligned_bytes for form in forms]))

    def ready(self) -> bool:
        """See `Channel`."""
        if not self._peer.messages and not self._peer.lost:
            self._peer.read()
        return bool(self._peer.messages)

    def receive(self, forms: Sequence[HostForm]) -> list[Any]:
        """See `Channel`.

        Raises:
            LostPeerError: the other process has ended.
        """
        while not self._peer.messages:
            if self._peer.lost:
                raise LostPeerError(self._peer.mesh)
            self._wires.take_in()
        body = self._peer.messages.popleft()
        values, at = [], 0
        for form in forms:
            values.append(form.value(body, at))
            at += form.aligned_bytes
        return values


class _Peer:
    """One connection: what has arrived, and the two rings."""

    def __init__(self, mesh: int, connection: socket.socket, outgoing: mmap | None, incoming: mmap | None) -> None:
        self.mesh, self.socket = mesh, connection
        self.messages: deque[np.ndarray] = deque()
        self.lost = False
        self.in_frame = False
        connection.setblocking(False)
        self._outgoing = None if outgoing is None else np.frombuffer(outgoing, np.uint8)
        self._incoming = None if incoming is None else np.frombuffer(incoming, np.uint8)
        self._written = self._read_by_other = self._read = self._acknowledged = 0
        self._scratch = np.empty(SCRATCH_BYTES, np.uint8)
        self._room = self._scratch.data
        self._have = 0
        self._body: np.ndarray | None = None
        self._filled = 0

    def write(self, pieces: Sequence[Any], length: int) -> int | None:
        """Copy a message into the ring; None where it finds no room."""
        if self._outgoing is None:
            return None
        self.read()
        size = len(self._outgoing)
        start = self._written
        # When all has been read, back to the start, which caches hold.
        if self._read_by_other == start or start % size + length > size:
            start += -start % size
        if start + length - self._read_by_other > size:
            return None
        at = start % size
        for piece in pieces:
            self._outgoing[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)
        self._written = start + length
        return start

    def read(self) -> None:
        """Take in what has arrived, without waiting."""
        try:
            while not self.lost:
                if self._body is not None:
                    count = self.socket.recv_into(self._body[self._filled :].data)
                    self._filled += count
                    if self._filled == len(self._body):
                        self.messages.append(self._body)
                        self._body = None
                else:
                    room = SCRATCH_BYTES - self._have
                    count = self.socket.recv_into(self._room[self._have :])
                    self._have += count
                    self._split()
                    if 0 < count < room and self._body is None:
                        break  # spares asking once more to hear that nothing is there
                self.lost = count == 0
        except BlockingIOError:
            pass
        except OSError:
            self.lost = True
        self.tell_read()

    def tell_read(self) -> None:
        """Let the other side use the ring again, unless a frame is half sent."""
        if self._read > self._acknowledged and not self.in_frame and not self.lost:
            try:
                self.socket.send(_HEAD.pack(_READ, 0, 0, self._read))
                self._acknowledged = self._read
            except BlockingIOError:
                pass
            except OSError:
                self.lost = True

    def _split(self) -> None:
        """Frames out of the scratch; a body that has not wholly arrived gets an array of its own."""
        at = 0
        while self._have - at >= _HEAD.size:
            kind, _, length, place = _HEAD.unpack_from(self._room, at)
            at += _HEAD.size
            if kind == _READ:
                self._read_by_other = place
            elif kind == _SHARED:
                assert self._incoming is not None
                start = place % len(self._incoming)
                body = aligned(length)
                body[:] = self._incoming[start : start + length]
                self.messages.append(body)
                self._read = place + length
            else:
                here = min(length, self._have - at)
                body = np.empty(length, np.uint8) if length < RING_FROM_BYTES else aligned(length)
                body[:here] = self._scratch[at : at + here]
                at += here
                if here < length:
                    self._body, self._filled = body, here
                else:
                    self.messages.append(body)
        if at < self._have:
            self._scratch[: self._have - at] = self._scratch[at : self._have].copy()
        self._have -= at


def _machine() -> str:
    """This machine since it started."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def _give_ring(connection: socket.socket) -> mmap | None:
    """Shared memory without a name, so that nothing stays behind; None where the system has none."""
    if not hasattr(os, "memfd_create"):
        connection.sendall(b"-")
        return None
    number = os.memfd_create("meshwright")
    os.ftruncate(number, RING_BYTES)
    ring = mmap(number, RING_BYTES)
    socket.send_fds(connection, [b"+"], [number])
    os.close(number)
    return ring


def _take_ring(connection: socket.socket) -> mmap | None:
    said, numbers, _, _ = socket.recv_fds(connection, 1, 1)
    if said != b"+":
        return None
    ring = mmap(numbers[0], RING_BYTES)
    os.close(numbers[0])
    return ring
