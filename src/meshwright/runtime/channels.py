"""What carries values between two meshes: one interface, whether they share a process, a host or only a network."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Protocol

from meshwright.runtime.host_arrays import HostForm


class Channel(Protocol):
    """Both directions between a mesh and another one; messages arrive in the order they were sent."""

    def send(self, values: Sequence[Any], forms: Sequence[HostForm]) -> None:
        """Send values; returns before the other side receives them, however many it has not yet received.

        Args:
            values: arrays of the own mesh.
            forms: the forms of each on the host.
        """
        ...

    def ready(self) -> bool:
        """Whether `receive` would return at once."""
        ...

    def receive(self, forms: Sequence[HostForm]) -> list[Any]:
        """The next message, waited for.

        Args:
            forms: the forms on the host of what it holds.

        Returns:
            Arrays on any device; the receiver places them.
        """
        ...


class LocalChannel:
    """The arrays themselves, between two meshes of one process."""

    def __init__(self, outgoing: SimpleQueue[list[Any]], incoming: SimpleQueue[list[Any]]) -> None:
        """One end.

        Args:
            outgoing: the other end's incoming messages.
            incoming: the other end's outgoing messages.
        """
        self._outgoing, self._incoming = outgoing, incoming

    def send(self, values: Sequence[Any], forms: Sequence[HostForm]) -> None:
        """See `Channel`."""
        self._outgoing.put(list(values))

    def ready(self) -> bool:
        """See `Channel`."""
        return not self._incoming.empty()

    def receive(self, forms: Sequence[HostForm]) -> list[Any]:
        """See `Channel`."""
        return self._incoming.get()


class LateChannel:
    """A channel whose messages are under way for a stated time, while their sender goes on."""

    def __init__(self, channel: Channel, late_s: Callable[[], float]) -> None:
        """Nothing is under way.

        Args:
            channel: the channel that carries the messages.
            late_s: asked for each message, how long it is under way.
        """
        self._channel, self._late_s = channel, late_s
        self._waiting: SimpleQueue[tuple[float, Sequence[Any], Sequence[HostForm]]] = SimpleQueue()
        self._carrier: threading.Thread | None = None

    def send(self, values: Sequence[Any], forms: Sequence[HostForm]) -> None:
        """See `Channel`."""
        if self._carrier is None:
            self._carrier = threading.Thread(target=self._carry, daemon=True)
            self._carrier.start()
        self._waiting.put((time.monotonic() + self._late_s(), values, forms))

    def ready(self) -> bool:
        """See `Channel`."""
        return self._channel.ready()

    def receive(self, forms: Sequence[HostForm]) -> list[Any]:
        """See `Channel`."""
        return self._channel.receive(forms)

    def _carry(self) -> None:
        while True:
            arrival_s, values, forms = self._waiting.get()
            time.sleep(max(arrival_s - time.monotonic(), 0.0))
            self._channel.send(values, forms)


def local_channels(meshes: int) -> list[dict[int, LocalChannel]]:
    """Ends of the channels between all pairs of meshes in one process.

    Args:
        meshes: how many.

    Returns:
        The channels of each mesh to every mesh, itself included.
    """
    messages: list[list[SimpleQueue[list[Any]]]] = [[SimpleQueue() for _ in range(meshes)] for _ in range(meshes)]
    return [
        {peer: LocalChannel(messages[mesh][peer], messages[peer][mesh]) for peer in range(meshes)}
        for mesh in range(meshes)
    ]
