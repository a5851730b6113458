"""Which worker holds which virtual stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from meshwright.shapes import Int


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
