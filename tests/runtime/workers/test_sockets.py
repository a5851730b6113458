"""Messages between workers arrive whole and in order, however much is under way."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshwright.runtime.host_arrays import HostForm, host_form
from meshwright.runtime.workers import sockets
from meshwright.runtime.workers.sockets import Listener, LostPeerError, SocketChannel, Wires

MESSAGES, SECRET = 40, b"0123456789abcdef"


def form(value: Any) -> HostForm:
    return host_form(tuple(value.shape), str(value.dtype))


def together(*works: Any) -> list[Any]:
    """What functions return that run at the same time."""
    results: list[Any] = [None] * len(works)

    def work(number: int) -> None:
        results[number] = works[number]()

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "they wait for each other"
    return results


def connected(folder: Path, machines: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> list[Wires]:
    """Two workers; of different machines, they use TCP and share no memory."""
    listeners = []
    for number, machine in enumerate(machines):
        (folder / str(number)).mkdir()
        monkeypatch.setattr(sockets, "_machine", lambda machine=machine: machine)
        listeners.append(Listener(folder / str(number), "127.0.0.1"))
    addresses = [listener.address for listener in listeners]
    return together(*(lambda n=n: listeners[n].connect(n, addresses, SECRET) for n in range(2)))


def messages(seed: int) -> list[list[Any]]:
    """Small and large, empty and of every kind."""
    drawn = np.random.RandomState(seed)
    found: list[list[Any]] = [
        [
            jax.random.key(seed),
            jnp.asarray(drawn.randn(3, 5), jnp.bfloat16),
            np.zeros((0, 4), np.float32),
            np.array(True),
        ]
    ]
    for size in drawn.choice([1, 1000, 20_000, 600_000], MESSAGES):
        found.append([drawn.randint(0, 255, size).astype(np.uint8), drawn.randn(7)])
    return found


def same(one: Any, other: Any) -> bool:
    if str(one.dtype).startswith("key"):
        one, other = jax.random.key_data(one), jax.random.key_data(other)
    return one.dtype == other.dtype and np.array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.parametrize("machines", [("here", "here"), ("here", "there")], ids=["shared memory", "TCP"])
def test_both_may_send_all_before_they_receive(
    tmp_path: Path, machines: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Far more than sockets and the ring hold: whoever only sent would wait for ever.
    monkeypatch.setattr(sockets, "RING_BYTES", 1 << 20)
    wires = connected(tmp_path, machines, monkeypatch)
    channels: list[SocketChannel] = [wires[0].channel(1), wires[1].channel(0)]

    def exchange(number: int) -> list[list[Any]]:
        for values in messages(number):
            channels[number].send(values, [form(value) for value in values])
        return [channels[number].receive([form(value) for value in values]) for values in messages(1 - number)]

    for number, received in enumerate(together(lambda: exchange(0), lambda: exchange(1))):
        for values, expected in zip(received, messages(1 - number), strict=True):
            assert all(same(one, other) for one, other in zip(values, expected, strict=True))
    for one in wires:
        one.close()


def test_a_peer_that_is_gone_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = connected(tmp_path, ("here", "here"), monkeypatch)
    value = np.arange(3)
    other.channel(0).send([value], [form(value)])
    other.close()
    assert same(one.channel(1).receive([form(value)])[0], value)
    with pytest.raises(LostPeerError, match="mesh 1 is gone"):
        one.channel(1).receive([form(value)])
    with pytest.raises(LostPeerError, match="mesh 1 is gone"):
        one.channel(1).send([value], [form(value)])
    one.close()


def test_strangers_are_turned_away_whatever_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One who says nothing and goes, one who begins the secret, one who guesses; then the workers find each other."""
    monkeypatch.setattr(sockets, "GREETING_S", 0.2)
    create, met = Listener.__init__, list[socket.socket]()

    def crowded(self: Listener, folder: Path, host: str) -> None:
        create(self, folder, host)
        for said in (b"", SECRET[:5], b"x" * (len(SECRET) + 4)):
            stranger = socket.create_connection((self.address.host, self.address.port))
            stranger.sendall(said)
            met.append(stranger)
        met.pop(0).close()

    monkeypatch.setattr(Listener, "__init__", crowded)
    for wires in connected(tmp_path, ("here", "there"), monkeypatch):
        wires.close()
    for stranger in met:
        stranger.close()
