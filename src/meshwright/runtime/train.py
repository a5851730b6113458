"""Steps under a plan with checkpoints between them; where a worker is lost, on with what is left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Full, Queue
from typing import Any

import jax
import numpy as np

from meshwright.errors import LostError
from meshwright.runtime.checkpoint import last_checkpoint, restore_checkpoint, save_checkpoint
from meshwright.runtime.parallelize import ParallelizedStep
from meshwright.runtime.training.planned import PlannedTraining, joined

POLL_S = 0.1


class Loader:
    """Iterates over `source(start)`, `source(start + 1)`, ...; a thread keeps the next few ready."""

    def __init__(self, source: Callable[[int], Any], start: int = 0, ahead: int = 2) -> None:
        """Begin to make batches.

        Args:
            source: the source of the batch of a step; it depends on nothing but the step, so that a run can go on from
                any.
            start: first step.
            ahead: batches kept ready.
        """
        self.step = start
        """Step of the next batch, saved in checkpoints."""
        self._ready: Queue[tuple[Any, BaseException | None]] = Queue(max(1, ahead))
        self._ended = threading.Event()
        threading.Thread(target=self._make, args=(source, start), daemon=True).start()

    def __iter__(self) -> Iterator[Any]:
        """Itself."""
        return self

    def __next__(self) -> Any:
        """The next batch, waited for.

        Raises:
            StopIteration: the loader was closed.
        """
        if self._ended.is_set():
            raise StopIteration
        batch, error = self._ready.get()
        if error is not None:
            self.close()
            raise error
        self.step += 1
        return batch

    def close(self) -> None:
        """Stop making batches."""
        self._ended.set()

    def _make(self, source: Callable[[int], Any], step: int) -> None:
        while not self._ended.is_set():
            made: tuple[Any, BaseException | None]
            try:
                made = source(step), None
            except BaseException as error:
                made = None, error
            while not self._ended.is_set():
                try:
                    self._ready.put(made, timeout=POLL_S)
                    break
                except Full:
                    continue
            if made[1] is not None:
                return
            step += 1


SETTLE_S = 60.0
"""Seconds after a loss for which workers lost before their first step count as the same loss, and are hired again: a
cluster may place workers on the lost node until it misses it."""
PAUSE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A worker was lost, and the run went on."""

    why: str
    """What was lost, and where it ran."""
    step: int
    """The step under way when the worker was lost."""
    resumed: int
    """Step with which it went on: those between were done again."""
    training: PlannedTraining
    """What the run continued with."""
    devices: int
    """Number of devices that were left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What `train` is asked for."""

    count: int
    folder: Path | None = None
    """Folder of checkpoints; a run continues from one that is there."""
    every: int = 10
    """Steps from one checkpoint to the next."""
    plan_again: Callable[..., PlannedTraining] | None = None
    """The same training on so many devices, without the workers of the meshes `lost`: how it goes on after a loss,
    which needs the folder; without it a loss ends the run."""

    def before_save(self, number: int, most: int) -> int:
        """Steps that run before the next checkpoint, or the end.

        Args:
            number: the number of steps done.
            most: the most to be counted.
        """
        ends = self.count if self.folder is None else min(self.count, (number // self.every + 1) * self.every)
        return min(most, ends - number)


@dataclass(eq=False, slots=True)
class Trained:
    """Where a run is."""

    training: PlannedTraining
    step: ParallelizedStep
    state: Any
    number: int
    """Steps done."""


def train(
    training: PlannedTraining,
    devices: Sequence[Any],
    steps: Steps,
    *,
    on_step: Callable[[int, float, float, ParallelizedStep], None],
    on_recovery: Callable[[Recovery], None] = lambda one: None,
) -> Trained:
    """Run steps; the caller closes the step that comes back.

    Args:
        training: what is trained, under which plan.
        devices: the devices, at least as many as the plan has.
        steps: how many, and when they are written down.
        on_step: called with number, loss and seconds of each step, and the step function.
        on_recovery: called with each recovery.

    Raises:
        InfeasibleError: too few devices are left for the batch.
        LostError: a worker was lost, and the run is not elastic.
    """
    left = list(devices)
    recovered: Recovery | None = None
    since = 0.0
    now = Trained(training, training.step(left), *_begin(training, steps.folder))
    if steps.plan_again is not None and now.number == 0:
        _save(now, steps)
    while now.number < steps.count:
        try:
            _go_on(now, steps, on_step)
        except LostError as error:
            now.step.close()
            if steps.plan_again is None or steps.folder is None:
                raise
            if recovered is not None and now.number == recovered.resumed and time.monotonic() - since < SETTLE_S:
                time.sleep(PAUSE_S)
                continue
            lost = [worker // now.training.hosts_per_mesh for worker in error.workers]
            gone = sum(now.training.mesh_sizes[mesh] for mesh in lost) // now.training.hosts_per_mesh
            left = left[: max(len(left) - gone, 0)]
            at, since = now.number, time.monotonic()
            changed = steps.plan_again(now.training, len(left), lost=lost)
            now = Trained(changed, changed.step(left), *_begin(changed, steps.folder))
            why = "; ".join(problem.what for problem in error.problems)
            recovered = Recovery(why=why, step=at, resumed=now.number, training=changed, devices=len(left))
            on_recovery(recovered)
        except BaseException:
            now.step.close()
            raise
    return now


def _begin(training: PlannedTraining, folder: Path | None) -> tuple[Any, int]:
    """State and number of steps so far: those of the checkpoint, where there is one."""
    if folder is None or last_checkpoint(folder) is None:
        return training.initial(), 0
    saved = restore_checkpoint(folder, like=jax.eval_shape(lambda: training.saved(training.initial())))
    return training.resumed(saved), int(saved["step"]) // training.updates_per_step


def _go_on(now: Trained, steps: Steps, on_step: Callable[[int, float, float, ParallelizedStep], None]) -> None:
    batches = Loader(now.training.batch, now.number)
    try:
        while now.number < steps.count:
            ahead = steps.before_save(now.number, now.training.most_steps_at_once)
            batch = joined([next(batches) for _ in range(ahead)])
            start = time.perf_counter()
            state, loss = now.step(now.state, batch)
            values = np.ravel(loss).tolist()
            seconds = (time.perf_counter() - start) / ahead
            now.state, now.number = state, now.number + ahead
            if now.number % steps.every == 0 or now.number == steps.count:
                _save(now, steps)
            for number, value in enumerate(values, now.number - ahead):
                on_step(number, value, seconds, now.step)
    finally:
        batches.close()


def _save(now: Trained, steps: Steps) -> None:
    if steps.folder is not None:
        save_checkpoint(steps.folder, now.training.saved(now.state))
