"""The words of the schedule language: what a task does, in which lane, and which worker holds which virtual stage.

compute       F B I W R X OPT                       one after the other, in the order of the list
send          SEND_F SEND_B                         per pair of workers, in the order of the list
receive       RECV_F RECV_B                         when the message arrives
collective    UNSHARD RESHARD REDUCE                sharded data parallelism
host          OFFLOAD_A OFFLOAD_W | RELOAD_A RELOAD_W   to host memory | from it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache

import numpy as np

from meshwright.shapes import Int


class Kind(IntEnum):
    """What a task does on one virtual stage; the name is what users see."""

    F = 0
    """Forward."""
    B = 1
    """Full backward: input and weight gradient."""
    I = 2  # noqa: E741 - the field's own letter
    """Input gradient only; its `W` follows some time later."""
    W = 3
    """Weight gradient only."""
    R = 4
    """Forward again, to recompute what the backward needs."""
    X = 5
    """Redundant forward: the stage after this one (behind the last: the first), run here as well against failures."""
    OPT = 6
    """Optimizer step; the n-th makes version n + 1 of the weights."""
    SEND_F = 7
    """Sends the output of F to the stage after."""
    RECV_F = 8
    """Receives the input of F from the stage before."""
    SEND_B = 9
    """Sends the input gradient of B or I to the stage before."""
    RECV_B = 10
    """Receives the output gradient for B or I from the stage after."""
    UNSHARD = 11
    """Gathers the weights over the data-parallel ranks."""
    RESHARD = 12
    """Frees what UNSHARD gathered."""
    REDUCE = 13
    """Reduces (or reduce-scatters) the gradients over the data-parallel ranks."""
    OFFLOAD_A = 14
    """Copies the activations of a micro-batch to another memory and frees them here."""
    RELOAD_A = 15
    """Copies the activations of a micro-batch back from there."""
    OFFLOAD_W = 16
    """Drops the weights from the device; what changed is copied to the host first."""
    RELOAD_W = 17
    """Brings the weights from host memory."""


class Lane(IntEnum):
    """What part of a worker a task occupies; lanes run beside each other."""

    COMPUTE = 0
    SEND = 1
    RECEIVE = 2
    COLLECTIVE = 3
    HOST_OUT = 4
    HOST_IN = 5


LANE = np.array(
    [Lane.COMPUTE] * 7 + [Lane.SEND, Lane.RECEIVE] * 2 + [Lane.COLLECTIVE] * 3 + [Lane.HOST_OUT, Lane.HOST_IN] * 2,
    np.int8,
)
"""Lane of each kind."""

ROUNDS = np.isin(
    np.arange(len(Kind)), [Kind.OPT, Kind.UNSHARD, Kind.RESHARD, Kind.REDUCE, Kind.OFFLOAD_W, Kind.RELOAD_W]
)
"""Kinds that concern a whole chunk: they are numbered by how many of them the chunk had before, not by micro-batch."""

WEIGHTED = np.isin(np.arange(len(Kind)), [Kind.F, Kind.B, Kind.I, Kind.W, Kind.R])
"""Kinds that use the weights of their stage."""

LAST_BASIC = Kind.X
"""Tables of kinds up to this one compute only, and are checked and simulated without a look at the others."""


def frozen(values: object, dtype: type) -> np.ndarray:
    """A copy as a column that nobody can write to."""
    array: np.ndarray = np.array(values, dtype=dtype)
    array.setflags(write=False)
    return array


@dataclass(frozen=True, eq=False, kw_only=True)
class Placement:
    """Which worker holds which virtual stage: linear, loop, V, wave or several chains at once."""

    worker: Int[np.ndarray, " stages"]
    """Worker of each virtual stage; the stages of one chain follow each other, chain after chain."""
    chain: Int[np.ndarray, " stages"]
    """Chain of each virtual stage, counting from 0; a bidirectional schedule has two."""
    by_worker: bool = False
    """Layers are cut so that workers are alike, where otherwise stages are."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "worker", frozen(self.worker, np.int32))
        object.__setattr__(self, "chain", frozen(self.chain, np.int32))

    @classmethod
    def of_chains(cls, chains: Sequence[Sequence[int]], *, by_worker: bool = False) -> Placement:
        """Each chain written as the workers its micro-batches visit, in forward order."""
        return cls(
            by_worker=by_worker,
            worker=np.concatenate([np.asarray(chain, np.int32) for chain in chains]),
            chain=np.repeat(np.arange(len(chains)), [len(chain) for chain in chains]),
        )

    @classmethod
    def loop(cls, p: int, v: int) -> Placement:
        """Virtual stage k*p + r is chunk k of worker r; with v = 1 the linear placement."""
        return _loop(p, v)

    @property
    def stages(self) -> int:
        """Virtual stages of all chains together."""
        return len(self.worker)

    @property
    def chains(self) -> int:
        """Chains of virtual stages."""
        return int(self.chain[-1]) + 1

    @cached_property
    def p(self) -> int:
        """Workers."""
        return int(self.worker.max()) + 1

    @cached_property
    def chunk(self) -> Int[np.ndarray, " stages"]:
        """Chunk of its worker that each virtual stage is: the worker's stages counted in order, all chains through."""
        by_worker = np.argsort(self.worker, kind="stable")
        first = np.searchsorted(self.worker[by_worker], np.arange(self.p))
        chunk = np.empty(self.stages, np.int32)
        chunk[by_worker] = np.arange(self.stages) - first[self.worker[by_worker]]
        return frozen(chunk, np.int32)

    @cached_property
    def v(self) -> int:
        """Chunks of the worker that has most."""
        return int(self.chunk.max()) + 1

    @cached_property
    def following(self) -> Int[np.ndarray, " stages"]:
        """The virtual stage after each one in its chain, -1 after the last."""
        following = np.arange(1, self.stages + 1)
        following[np.append(self.chain[1:] != self.chain[:-1], True)] = -1
        return frozen(following, np.int32)

    @cached_property
    def preceding(self) -> Int[np.ndarray, " stages"]:
        """The virtual stage before each one in its chain, -1 before the first."""
        preceding = np.arange(-1, self.stages - 1)
        preceding[np.append(True, self.chain[1:] != self.chain[:-1])] = -1
        return frozen(preceding, np.int32)


@lru_cache(maxsize=512)
def _loop(p: int, v: int) -> Placement:
    return Placement.of_chains([np.tile(np.arange(p), v).tolist()])
