"""A plan of data ranks that hold something of their own, or elsewhere: step, state, and the same on one device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from meshwright.errors import Problem, UnsupportedError
from meshwright.runtime.devices import require_devices
from meshwright.runtime.rank_steps.host_steps import HostStep, SwappedStep
from meshwright.runtime.rank_steps.on_workers import RanksOnWorkers
from meshwright.runtime.rank_steps.passing_steps import PASSING_STEPS
from meshwright.runtime.rank_steps.prefetched_steps import prefetch_refusals, rank_step_kind
from meshwright.runtime.rank_steps.rank_rules import rank_refusals
from meshwright.runtime.rank_steps.rank_steps import RanksOnDevices, RankStep
from meshwright.runtime.training.run import Training
from meshwright.specs.row import offload_of
from meshwright.specs.shardings import SHARDINGS
from meshwright.targets.run.rules import host_refusals
from meshwright.zoo.training import State, first_weights

TIMED = 3
"""Steps of which the median is the time of a step alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTraining(Training):
    """A plan of data ranks alone."""

    def __post_init__(self) -> None:
        passing = SHARDINGS[self.row.sharding].passing
        travels = [self.row.sharding_word] if SHARDINGS[self.row.sharding].travels else []
        problems = list(rank_refusals(self.row) if self.row.data_words or travels else host_refusals(self.row))
        words = ".".join((*travels, *self.row.data_words, *([f"off-{self.row.offload}"] if self.row.offload else [])))
        if self.spec is not None and self.spec.is_moe:
            problems.append(
                Problem(
                    what=f"{words} does not run with {self.spec.name}",
                    why="routing is compared with one device, which needs equal weights on all ranks",
                    fix="use a dense model",
                    field="model",
                )
            )
        if self.spec is None and offload_of(self.row.offload).activations:
            problems.append(
                Problem(
                    what=f"{words} does not run with the perceptron",
                    why="activations leave layer by layer of a decoder",
                    fix="a model such as llama-tiny",
                    field="model",
                )
            )
        if self.row.data().prefetch != 1:
            problems += prefetch_refusals(words, self.spec)
        if passing in PASSING_STEPS:
            problems += PASSING_STEPS[passing].refusals(self.row, self.spec, sum(self.stage_layers))
        if self.scaling is not None:
            problems.append(
                Problem(
                    what=f"{words} does not run in fp16",
                    why="kept compression errors would have an earlier loss scale",
                    fix="use bf16",
                    field="dtype",
                )
            )
        if self.backend != "local":
            problems.append(
                Problem(
                    what=f"{words} does not run with backend {self.backend}",
                    why="its step is one program of all ranks",
                    fix="use local",
                    field="backend",
                )
            )
        if problems:
            raise UnsupportedError(problems, code="MW411")

    @property
    def ranks(self) -> RankStep:
        """The step of a rank."""
        data = self.row.data()
        if self.row.offload == "a" and not data.zero:
            return SwappedStep(model=self.model(), data=data, micro_batches=self.row.micro_batches, seed=self.seed)
        if self.row.offload:
            return HostStep(
                model=self.model(),
                data=data,
                micro_batches=self.row.micro_batches,
                seed=self.seed,
                offload=offload_of(self.row.offload),
            )
        if data.passing in PASSING_STEPS:
            step = PASSING_STEPS[data.passing].step
            return step(model=self.model(), data=data, micro_batches=self.row.micro_batches, seed=self.seed)
        sharded = bool(data.secondary_shard or data.gather_dtype or data.reduce_dtype)
        step = rank_step_kind(data.prefetch, otherwise=sharded)
        return step(model=self.model(), data=data, micro_batches=self.row.micro_batches, seed=self.seed)

    def step(self, devices: Sequence[Any], *, gradients_too: bool = False) -> Any:
        """The step under the plan, as `RankedStep`.

        Args:
            devices: the devices, at least as many as the plan has.
            gradients_too: whether it returns the gradients behind state and loss.

        Raises:
            InputError: too few devices.
        """
        used = require_devices(self.row.devices, devices, self.row.identity())
        return RankedStep(self.ranks.on(used, gradients_too=gradients_too))

    def alone(self) -> Callable[[State, Any], tuple[State, jax.Array, Any]]:
        """The same step of all ranks on one device."""
        return self.ranks.alone()

    def initial(self) -> State:
        """The state before the first step."""
        return self.ranks.initial(first_weights(self.plain_model(), self.seed))


class RankedStep:
    """One program of all ranks."""

    def __init__(self, step: RanksOnDevices | RanksOnWorkers) -> None:
        """Nothing is compiled before the first call.

        Args:
            step: the step of all ranks.
        """
        self.ranks = step

    def __call__(self, state: Any, batch: Any) -> tuple[Any, ...]:
        """Run the step on the devices.

        Args:
            state: the state as `RankTraining.initial` makes it.
            batch: the batch of all ranks.
        """
        return self.ranks(state, batch)

    def alone_s(self, state: Any, batch: Any) -> float:
        """Median seconds of the step, which is one executable.

        Args:
            state: any.
            batch: any.
        """
        taken = []
        for _ in range(TIMED):
            start = time.perf_counter()
            jax.block_until_ready(self.ranks(state, batch))
            taken.append(time.perf_counter() - start)
        return float(np.median(taken))

    def close(self) -> None:
        """Let workers go, where there are any."""
        self.ranks.close()
