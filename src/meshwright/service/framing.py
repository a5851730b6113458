"""Messages between the service and its workers: each with its length before it."""

from __future__ import annotations

import asyncio
import socket
import struct

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


async def next_message(reader: asyncio.StreamReader) -> bytes:
    """The next message of a stream.

    Raises:
        EOFError: the other end is closed.
    """
    size = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))[0]
    return await reader.readexactly(size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        piece = connection.recv(min(size - len(found), 2**20))
        if not piece:
            raise EOFError
        found += piece
    return bytes(found)
