"""The tasks of a step: which there are, where each one runs, in what order, and how the order goes on."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np

from meshwright.errors import InputError
from meshwright.schedules.declaration import Declaration
from meshwright.schedules.table import Kind, Placement, ScheduleTable

STEADY_PERIODS = 5
"""Periods, besides p micro-batches, of the shortened table from which long runs are continued."""

Own = TypeVar("Own", bound="Ordered")
"""The schedule itself: array shapes are checked where functions stand, which `Self` is outside of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """A step's tasks, and the updates of the weights that it makes."""

    table: ScheduleTable
    count: int = 1
    """Updates in the step."""
    each: int = 0
    """Micro-batches per update; 0: all of the step."""
    lag: int = 0
    """Updates that the weights of a micro-batch lack at most."""


@dataclass(frozen=True, kw_only=True)
class Ordered(Declaration):
    """A schedule as an order of tasks on p workers, for m micro-batches and v chunks per worker."""

    def table(self, p: int, m: int, v: int = 1) -> ScheduleTable:
        """The order of every task, checked; the same object when asked again.

        Args:
            p: workers.
            m: micro-batches per step.
            v: chunks per worker.

        Raises:
            InputError: the constraints of the schedule are not met.
        """
        return _cached_table(self, p, m, v)

    def made_for(self: Own, p: int, forward_s: float, input_s: float, weight_s: float, transfer_s: float) -> Own:
        """The schedule for equal stages of these times; itself, unless its order depends on them.

        Args:
            p: workers.
            forward_s: the forward seconds of one micro-batch through a full worker share.
            input_s: input gradient.
            weight_s: weight gradient.
            transfer_s: latency of a transfer.
        """
        return self

    def failover_table(self, p: int, m: int, lost: int) -> ScheduleTable:
        """The order of the workers that are left when one is lost.

        Args:
            p: workers before the loss.
            m: micro-batches per step.
            lost: number of the lost worker.

        Raises:
            InputError: no other worker holds its stage, or there is no such worker.
        """
        why = f"with {self.name} no other worker holds the stage of worker {lost}"
        fix = "use schedule bamboo, or plan anew for what is left: plan --replan-from FILE --lost 1xDEVICE"
        raise InputError(what=f"lost = {lost}", why=why, fix=fix, field="lost", code="MW240")

    def updates(self, p: int, m: int, v: int = 1, count: int | None = None) -> Updates:
        """The tasks of a step that is run, and its updates.

        Args:
            p: workers.
            m: micro-batches per step.
            v: chunks per worker.
            count: updates asked for; None: as many as the schedule makes.

        Raises:
            InputError: the constraints of the schedule are not met, or it makes another number of updates.
        """
        self._check(p, m, v)
        self._check_updates(count, 1)
        return Updates(table=self.table(p, m, v))

    def _check_updates(self, asked: int | None, made: int) -> None:
        """Refuse another number of updates than a step makes."""
        if asked not in (None, made):
            what, why = f'updates = {asked} with schedule = "{self.name}"', f"it does {made} in a step"
            fix = f'updates={made}, or schedule="pipedream-2bw"'
            raise InputError(what=what, why=why, fix=fix, field="updates")

    def placement(self, p: int, v: int = 1) -> Placement:
        """Which worker holds which virtual stage."""
        return Placement.loop(p, v)

    @property
    def chains(self) -> int:
        """Chains of stages, each with all layers, that share its micro-batches."""
        return 1

    def stages(self, p: int, v: int = 1) -> int:
        """Virtual stages of one chain: p * v, but where workers may hold fewer than v.

        Args:
            p: workers.
            v: chunks of the worker that has most.
        """
        return p * v

    def boundaries(self, p: int, v: int = 1) -> int:
        """Boundaries between two workers that a micro-batch crosses on its way forward; as many gradients come back.

        p - 1 on the linear placement, p*v - 1 on a loop, v*(p - 1) on a V or a wave, whose turns stay on a worker.

        Args:
            p: workers.
            v: chunks per worker.
        """
        placement = self.placement(p, v)
        crossed = (placement.following >= 0) & (placement.worker[placement.following] != placement.worker)
        return int(np.count_nonzero(crossed)) // placement.chains

    def drains(self, p: int, m: int) -> bool:
        """Whether workers are idle between steps, as far as they are within one.

        Args:
            p: workers.
            m: micro-batches per step.
        """
        return self.flushes and not self.validates_behind

    @property
    def validates_behind(self) -> bool:
        """Whether updates are validated behind the step: each worker goes on when its own part of a step is over."""
        return False

    def sections(self) -> int:
        """Parts that each micro-batch is cut into along its sequence; a task runs one of them."""
        return 1

    @property
    def parts_samples(self) -> bool:
        """Whether those parts may be samples of the micro-batch, none of which reads anything of another."""
        return False

    def tasks_per_share(self, v: int) -> int:
        """Tasks of one kind that make up the work of one micro-batch on a full worker share: v chunks."""
        return v

    @property
    def recomputes_in_tasks(self) -> bool:
        """Whether recomputation is a task of its own, which makes all activations of a stage again."""
        return Kind.R in self.kinds

    def last_passes(self, p: int, m: int, v: int) -> float:
        """Backwards of a micro-batch, of a full worker share, from the last of the first complete chunk to the end.

        One where all chunks of a worker end with the last micro-batch; likewise forwards before the last chunk starts.

        Args:
            p: workers.
            m: micro-batches per step.
            v: chunks per worker.
        """
        return 1.0

    def unpaired(self, p: int, m: int, v: int) -> int | None:
        """Forwards, and as many backwards, that run without a partner where tasks of two micro-batches run together.

        Counted along the longest way through a step, in tasks of a chunk; None where forwards and backwards cannot run
        together. A worker alone pairs each forward but the first with the backward before it.

        Args:
            p: workers.
            m: micro-batches per step.
            v: chunks per worker.
        """
        if p == 1:
            return min(m, 1)
        if not self.pairs_passes:
            return None
        table = self.table(p, self._shortened(p, m, v), v)
        fused = np.zeros(table.tasks, dtype=bool) if table.fused is None else table.fused
        alone = (table.kind == Kind.F) & ~fused & ~np.append(fused[1:], False)
        return int(np.bincount(table.worker[alone], minlength=p).max())

    def period(self, p: int, v: int) -> int | None:
        """Micro-batches after which the steady order repeats; None if a longer step is not a shorter one stretched."""
        return 1 if self.repeats else None

    @property
    def period_found(self) -> bool:
        """Whether a period is looked for in an order, which takes as long as to make one."""
        return False

    def continued_from(self, p: int, m: int, v: int) -> int:
        """Micro-batches of the table from which a step of m is continued; m where its order does not repeat.

        Args:
            p: workers.
            m: micro-batches per step.
            v: chunks per worker.
        """
        return self._shortened(p, m, v)

    @abstractmethod
    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        """The order of every task, for legal p, m and v."""

    def _shortened(self, p: int, m: int, v: int) -> int:
        """The smallest number of micro-batches whose table holds all that the table for m does, warm-up to drain."""
        period = self.period(p, v)
        if period is None:
            return m
        enough = self._settled(p, v) + max(STEADY_PERIODS * period, 8)
        return m if m <= enough else enough + (m - enough) % period

    def _settled(self, p: int, v: int) -> int:
        """Micro-batches that fill and drain the pipeline between them, at most."""
        return self.ramps * p

    def _check(self, p: int, m: int, v: int) -> None:
        problems = self.problems(p, m, v)
        if problems:
            raise InputError(problems)


@lru_cache(maxsize=256)
def _cached_table(schedule: Ordered, p: int, m: int, v: int) -> ScheduleTable:
    schedule._check(p, m, v)
    return schedule._table(p, m, v)
