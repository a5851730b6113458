"""Messages between the service and its workers: each with its length before it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

_LENGTH = struct.Struct("!Q")


def framed(content: bytes) -> bytes:
    """A message as it goes over the wire."""
    return _LENGTH.pack(len(content)) + content


def receive(connection: socket.socket) -> bytes:
    """The next message of a blocking socket.

    Raises:
        EOFError: the other end is closed.
    """
    return _exactly(connection, _LENGTH.unpack(_exactly(connection, _LENGTH.size))[0])


class Messages:
    """Messages of a stream that comes in pieces."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def with_more(self, piece: bytes) -> Iterator[bytes]:
        """The messages that a piece completes.

        Args:
            piece: what came next.
        """
        self._rest += piece
        while len(self._rest) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._rest)[0]
            if len(self._rest) < end:
                return
            message = bytes(memoryview(self._rest)[_LENGTH.size : end])
            del self._rest[:end]
            yield message


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        piece = connection.recv(min(size - len(found), 2**20))
        if not piece:
            raise EOFError
        found += piece
    return bytes(found)
