"""Arrays that workers in other processes keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import jax
import numpy as np

from meshwright.compiler.instructions import Buffer
from meshwright.errors import InputError
from meshwright.runtime.host_arrays import from_host, host_form
from meshwright.runtime.local import GIVEN
from meshwright.runtime.workers.remote_team import MadeValues


class DistributedArray(ABC):
    """An array that is not in one place of this process."""

    __slots__ = ()

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""

    @property
    @abstractmethod
    def dtype(self) -> Any:
        """Type of the entries."""

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of entries."""
        return int(np.prod(self.shape, dtype=np.int64))


class RemoteArray(DistributedArray):
    """A value that a worker keeps; `numpy.asarray` gathers it."""

    # A step of a large model makes hundreds of these, so they hold no more than where they come from.
    __slots__ = ("_made", "_number")

    def __init__(self, made: MadeValues, number: int) -> None:
        """Refer to a value.

        Args:
            made: the number of the step that made them.
            number: the number of the buffer that held it.
        """
        self._made = made
        self._number = number

    def __del__(self) -> None:
        # In a tenth of the time of a finalizer, of which a step would make one for every array of the state.
        made = self._made
        made.dropped.append(self._number)
        if len(made.dropped) == 1:
            made.team.dropping.append(made)

    @property
    def buffer(self) -> Buffer:
        """Buffer that held it, the same object after every step of a program."""
        return self._made.buffers[self._number]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        return self.buffer.shape

    @property
    def dtype(self) -> Any:
        """Type of the entries."""
        form = host_form(self.buffer.shape, self.buffer.dtype)
        return jax.random.key(0, impl=form.keys).dtype if form.keys else form.dtype

    @property
    def mesh(self) -> int:
        """Mesh that holds it."""
        return self.buffer.mesh

    def gather(self) -> Any:
        """The whole value, as an array that JAX takes."""
        form = host_form(self.buffer.shape, self.buffer.dtype)
        return from_host(self._numbers(), form.keys)

    def give(self) -> None:
        """Give its memory to a step."""
        self._made.given.add(self._number)

    def check(self) -> None:
        """Whether it can still be read.

        Raises:
            InputError: a step has taken its memory.
        """
        if self._number in self._made.given:
            raise InputError(GIVEN)

    def _numbers(self) -> np.ndarray:
        hosts, number = self._made.hosts, self._number
        if number not in hosts:
            self.check()
            hosts[number] = self._made.team.fetch(self.mesh, (self._made.step, number))
        return hosts[number]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._numbers(), dtype=dtype, copy=copy)

    def __jax_array__(self) -> jax.Array:
        return jax.numpy.asarray(self.gather())

    def __float__(self) -> float:
        return float(self._numbers())

    def __int__(self) -> int:
        return int(self._numbers())

    def __getitem__(self, index: Any) -> Any:
        return self.gather()[index]

    def __repr__(self) -> str:
        return f"RemoteArray({self.buffer.dtype}{list(self.shape)} on mesh {self.mesh})"
