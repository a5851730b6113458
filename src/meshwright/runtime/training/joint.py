"""A model of the zoo under a plan whose pipelines hold one copy of their states together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from meshwright.compiler.instructions import StepProgram
from meshwright.errors import Problem, UnsupportedError
from meshwright.runtime.backends import runtime_of
from meshwright.runtime.devices import require_devices
from meshwright.runtime.emulation import JointPaces, joint_paces
from meshwright.runtime.local import LocalRuntime
from meshwright.runtime.mixed_plan import model_form
from meshwright.runtime.rank_steps.joint_steps import JointStep, Share, of_whole
from meshwright.runtime.rank_steps.on_workers import RanksOnWorkers
from meshwright.runtime.rank_steps.rank_steps import RanksOnDevices
from meshwright.runtime.training.job import JobTraining, held
from meshwright.runtime.training.planned import PlannedTraining
from meshwright.runtime.training.ranks import RankedStep
from meshwright.runtime.workers.remote import RemoteRuntime
from meshwright.shapes import Int
from meshwright.specs.strategy import DataParallel
from meshwright.zoo.decoder import Decoder
from meshwright.zoo.training import State, first_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class JointTraining(JobTraining):
    """One ZeRO group of data ranks, each kind of device with its share of the batch, as one program of all ranks."""

    def __post_init__(self) -> None:
        if problems := list(self._refused()):
            raise UnsupportedError(problems, code="MW411")

    @property
    def mesh_devices(self) -> tuple[tuple[int, ...], ...]:
        """Parts of equal size, each of one kind: workers share the mesh of all ranks so."""
        ranks = [held(worker) for pipeline in self.job.plan.pipelines for worker in pipeline.workers]
        size = gcd(*map(len, ranks))
        return tuple(own[first : first + size] for own in ranks for first in range(0, len(own), size))

    @property
    def ranks(self) -> JointStep:
        """The step of a rank."""
        plan, plain = self.job.plan, self.plain_model()
        assert isinstance(plain, Decoder)
        data = plan.strategies[plan.strategy_index(plan.pipelines[0], plan.pipelines[0].workers[0])].data
        none = (0.0,) * len(plan.pipelines)
        paces = JointPaces(passes_s=none, behind_s=none, update_s=0.0)
        if self.emulate:
            paces = joint_paces(self.planned_step, scale=self.emulate)
        return JointStep(
            model=plain,
            data=DataParallel(shard=plan.joint_ranks, zero=3),
            micro_batches=plan.pipelines[0].num_micro_batches,
            seed=self.seed,
            zero=data.zero,
            keeps=not data.reshard,
            update_s=paces.update_s,
            shares=tuple(
                Share(
                    model=replace(plain, recompute=model_form(plan, pipeline).recompute),
                    samples=pipeline.micro_batch,
                    ranks=plan.data_degree(pipeline),
                    pass_s=pass_s,
                    behind_s=behind_s,
                )
                for pipeline, pass_s, behind_s in zip(plan.pipelines, paces.passes_s, paces.behind_s, strict=True)
            ),
        )

    def step(self, devices: Sequence[Any], *, gradients_too: bool = False) -> Any:
        """The step under the plan, as `RankedStep`.

        Args:
            devices: the devices, at least as many as the plan has.
            gradients_too: whether it returns the gradients behind state and loss.

        Raises:
            InputError: too few devices.
        """
        used, ranks = require_devices(self.job.plan.devices, devices), self.ranks
        step = ranks.on(used, gradients_too=gradients_too)
        there = step if self.backend == "local" else RanksOnWorkers(step, self._runtime)
        return DealtStep(there, samples_by_rank(ranks))

    def _runtime(self, program: StepProgram, mesh: Mesh) -> LocalRuntime | RemoteRuntime:
        """What runs the program of all ranks on the workers that are asked for, of one kind each."""
        hosts = len(self.mesh_devices) * self.hosts_per_mesh
        return runtime_of(program, [mesh], self.backend, self.ray, self.timeout_s, hosts, self.owned)

    def alone(self) -> Callable[[State, Any], tuple[State, jax.Array, Any]]:
        """The same step on one device, of the whole batch and with whole states."""
        return of_whole(self.ranks, PlannedTraining.alone(self))

    def initial(self) -> State:
        """The state before the first step."""
        return self.ranks.initial(first_weights(self.plain_model(), self.seed))

    def saved(self, state: State) -> State:
        """A state as checkpoints have it, whatever the plan: weights and moments whole.

        Args:
            state: the state of all ranks, here or with workers.
        """
        here = jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.Array) else np.asarray(leaf), state)
        return self.ranks.joined(here)

    def resumed(self, saved: State) -> State:
        """The state of a checkpoint in parts of these ranks.

        Args:
            saved: the state as `saved` makes it.
        """
        return self.ranks.parted(saved)

    def _refused(self) -> Iterator[Problem]:
        if self.spec is None or self.spec.is_moe:
            name = "the perceptron" if self.spec is None else self.spec.name
            yield Problem(
                what=f"states over all ranks do not run with {name}",
                field="model",
                why="shares of unlike ranks are of dense decoders",
                fix="use a dense model",
            )
        if self.scaling is not None:
            yield Problem(
                what=f"{self.title} does not run in fp16",
                field="dtype",
                fix="use bf16",
                why="an overflow on one rank would have to skip the update of all",
            )
        if self.backend != "local" and self.emulate:
            yield Problem(
                what=f"emulated devices do not run with backend {self.backend}",
                field="emulate",
                why="ranks that hold states together rest by calls into this process",
                fix="use local",
            )
        if self.mesh_sizes[0] % self.hosts_per_mesh:
            yield Problem(
                what=f"{self.mesh_sizes[0]} devices for hosts_per_mesh = {self.hosts_per_mesh}",
                field="hosts_per_mesh",
                why="workers have as many devices each, all of one kind",
                fix="hosts_per_mesh=1",
            )


class DealtStep(RankedStep):
    """One program of all ranks, whose samples are dealt out before it runs."""

    def __init__(self, step: RanksOnDevices | RanksOnWorkers, places: Int[np.ndarray, " dealt"]) -> None:
        """Nothing is compiled before the first call.

        Args:
            step: the step of all ranks.
            places: the places as `samples_by_rank` has them.
        """
        super().__init__(step)
        self._places = places

    def __call__(self, state: Any, batch: Any) -> tuple[Any, ...]:
        """Run the step on the devices.

        Args:
            state: the state as `JointTraining.initial` makes it.
            batch: the batch of all pipelines, one behind the other.
        """
        return super().__call__(state, jax.tree.map(lambda leaf: np.asarray(leaf)[self._places], batch))

    def alone_s(self, state: Any, batch: Any) -> float:
        """Median seconds of the step, which is one executable.

        Args:
            state: any.
            batch: any.
        """
        return super().alone_s(state, jax.tree.map(lambda leaf: np.asarray(leaf)[self._places], batch))


def samples_by_rank(ranks: JointStep) -> Int[np.ndarray, " dealt"]:
    """Places in the batch of the samples of each rank, micro-batch by micro-batch, all as many as the fullest has.

    Args:
        ranks: the ranks and their shares; the batch holds the samples of one pipeline behind those of another, of each
            its micro-batches one after the other, shared out to its ranks in order.
    """
    most = max(share.samples for share in ranks.shares)
    first, dealt = 0, []
    for share in ranks.shares:
        wave = share.samples * share.ranks
        for rank in range(share.ranks):
            own = first + rank * share.samples + np.minimum(np.arange(most), share.samples - 1)
            dealt += [own + number * wave for number in range(ranks.micro_batches)]
        first += wave * ranks.micro_batches
    return np.concatenate(dealt)
