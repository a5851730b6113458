"""Numbered checkpoints through Orbax: written in the background, read onto any plan and mesh, with the data's place.

What lies there is the tree that was given, whole arrays whatever the plan, so that programs without meshwright read it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

import jax
import numpy as np

from meshwright.errors import InputError, Problem, UnsupportedError
from meshwright.runtime.stacked import StackedArray
from meshwright.runtime.workers.remote_arrays import RemoteArray

STATE, DATA = "state", "data"
WAYS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))
"""How iterators tell and take their place: Grain's, and those of torchdata."""


class CountedBatches:
    """Any iterator, whose place is the number of batches taken: a new one is run that far."""

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        """Begin.

        Args:
            begin: makes the iterator, the same batches each time.
        """
        self._begin, self._batches, self.taken = begin, begin(), 0

    def __iter__(self) -> Self:
        """Itself."""
        return self

    def __next__(self) -> Any:
        """The next batch."""
        batch = next(self._batches)
        self.taken += 1
        return batch

    def get_state(self) -> dict[str, int]:
        """The place."""
        return {"taken": self.taken}

    def set_state(self, state: dict[str, int]) -> None:
        """Go to a place.

        Args:
            state: the state as `get_state` gave it.
        """
        self.taken = int(state["taken"])
        self._batches = islice(self._begin(), self.taken, None)


class Checkpoints:
    """A folder of checkpoints by step."""

    def __init__(self, folder: str | Path, *, keep: int | None = None, background: bool = True) -> None:
        """Open a folder, or make it.

        Args:
            folder: the folder of the checkpoints.
            keep: the newest so many; all without it.
            background: whether a save returns once arrays are copied, and files are written while training goes on.

        Raises:
            UnsupportedError: Orbax is not installed.
        """
        self._orbax = _orbax()
        options = self._orbax.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=background)
        self._manager = self._orbax.CheckpointManager(Path(folder).absolute(), options=options)
        self.folder = Path(folder)

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Wait for what is being written."""
        self.close()

    @property
    def steps(self) -> list[int]:
        """Steps that have checkpoints, in ascending order."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: Any, data: Any = None) -> None:
        """Write a state.

        Args:
            step: its number.
            state: tree of arrays, of whatever backend and method.
            data: iterator whose place is kept: Grain's, torchdata's, `CountedBatches`, or with methods like theirs.

        Raises:
            InputError: the iterator does not tell its place.
        """
        parts = {STATE: self._orbax.args.StandardSave(jax.tree.map(_plain, state))}
        if data is not None:
            parts[DATA] = self._orbax.args.JsonSave(_saved_state(data))
        self._manager.save(step, args=self._orbax.args.Composite(**parts), force=True)

    def restore(self, like: Any, *, step: int | None = None, data: Any = None) -> Any:
        """Read a state onto the devices and shardings of another, and bring the data to the place it had.

        Args:
            like: a state, or `train_step.lower(...).state_shapes()`; leaves without a sharding come as NumPy arrays.
            step: the step to restore; the newest without it.
            data: iterator to be moved.

        Raises:
            InputError: there is no such checkpoint, or it is of another tree.
        """
        self._manager.wait_until_finished()
        chosen = step if step is not None else self._manager.latest_step()
        if chosen is None or chosen not in self.steps:
            raise InputError(
                Problem(
                    what=f"no checkpoint of step {step}" if step is not None else "no checkpoint yet",
                    field="step",
                    why=f"{self.folder} has {', '.join(map(str, self.steps)) or 'none'}",
                    fix="save one, or another step",
                )
            )
        parts = {STATE: self._orbax.args.StandardRestore(jax.tree.map(_asked, like))}
        if data is not None:
            parts[DATA] = self._orbax.args.JsonRestore()
        try:
            found = self._manager.restore(chosen, args=self._orbax.args.Composite(**parts))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                Problem(
                    what=f"checkpoint {chosen} of {self.folder} is of another tree",
                    field="like",
                    why=(str(error).splitlines() or [""])[0][:300],
                    fix="restore into the state that was saved",
                )
            ) from error
        if data is not None:
            _move(data, found[DATA])
        return jax.tree.map(_placed, like, found[STATE])

    def wait(self) -> None:
        """Wait until everything is written."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Wait, and let go of the folder."""
        self._manager.close()


def _orbax() -> ModuleType:
    try:
        import orbax.checkpoint as orbax
    except ImportError:
        raise UnsupportedError(
            Problem(
                what="Checkpoints needs Orbax, and it is not installed",
                why="it is an extra",
                fix="pip install 'meshwright[orbax]', or save_checkpoint and restore_checkpoint",
                field="orbax",
            ),
            code="MW409",
        ) from None
    return orbax


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> Any:
    """What Orbax is given: arrays where they lie, of workers and of stacked layers gathered, of keys the numbers."""
    if isinstance(leaf, RemoteArray):
        leaf = leaf.gather()
    if isinstance(leaf, StackedArray):
        return np.asarray(leaf)
    if _is_key(leaf):
        return jax.random.key_data(leaf)
    return leaf if isinstance(leaf, jax.Array | np.ndarray) else np.asarray(leaf)


def _asked(leaf: Any) -> Any:
    """What Orbax is asked for: arrays with a sharding, or of the host."""
    if _is_key(leaf):
        numbers = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
        return np.empty(numbers.shape, numbers.dtype)
    sharding = None if isinstance(leaf, StackedArray | RemoteArray) else getattr(leaf, "sharding", None)
    shape, dtype = np.shape(leaf), leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
    # Memory of an empty array is taken when it is written.
    return np.empty(shape, dtype) if sharding is None else jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def _placed(leaf: Any, found: Any) -> Any:
    if isinstance(leaf, StackedArray):
        spans = zip(leaf.bounds, leaf.bounds[1:], strict=False)
        rows = [found[low:high] for low, high in spans]
        shardings = [getattr(part, "sharding", None) for part in leaf.parts]
        return StackedArray(
            [row if own is None else jax.device_put(row, own) for row, own in zip(rows, shardings, strict=True)],
            leaf.bounds,
        )
    if _is_key(leaf):
        key = jax.random.wrap_key_data(found, impl=_kind_of(leaf.dtype))
        sharding = getattr(leaf, "sharding", None)
        return key if sharding is None else jax.device_put(key, sharding)
    return found


def _kind_of(dtype: Any) -> str:
    return str(dtype).removeprefix("key<").removesuffix(">").replace("fry", "threefry2x32")


def _way(data: Any) -> Sequence[str]:
    for way in WAYS:
        if all(hasattr(data, name) for name in way):
            return way
    raise InputError(
        Problem(
            what=f"the position of a {type(data).__name__} cannot be saved",
            field="data",
            why="it has neither " + " nor ".join(f"{tell} and {take}" for tell, take in WAYS),
            fix="CountedBatches(lambda: iter(...)), which counts what was taken",
        )
    )


def _saved_state(data: Any) -> dict[str, Any]:
    state = getattr(data, _way(data)[0])()
    return {"bytes": base64.b64encode(state).decode()} if isinstance(state, bytes) else {"state": state}


def _move(data: Any, saved: dict[str, Any]) -> None:
    state = base64.b64decode(saved["bytes"]) if "bytes" in saved else saved["state"]
    getattr(data, _way(data)[1])(state)
