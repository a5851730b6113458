"""Every pipeline schedule: its table, and the times, bounds and activations that follow from it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from meshwright.errors import InputError
from meshwright.schedules.bounds import PathBound
from meshwright.schedules.declaration import Declaration
from meshwright.schedules.events import Events
from meshwright.schedules.in_flight import live_vectors
from meshwright.schedules.program import Program, compile_events
from meshwright.schedules.simulate import makespans, worker_ends
from meshwright.schedules.table import Kind, Placement, ScheduleTable
from meshwright.schedules.times import Times, edge_latency_s
from meshwright.shapes import Float, Int

STEADY_PERIODS = 5
"""Periods, besides p micro-batches, of the shortened table from which long runs are continued."""

ROUNDING = 1e-12
"""Relative margin by which bounds stay below what rounding can do to sums of durations."""


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
class Schedule(Declaration):
    """A pipeline schedule: the table for p workers, m micro-batches, v chunks each, its time, bounds and activations.

    Subclasses are frozen dataclasses whose fields are the schedule's own parameters. They give `_table`, `_problems`
    and `closed_form_s`, some their own `_path_bound`; a `period` makes long steps cheap to simulate.
    """

    def made_for(self, p: int, forward_s: float, input_s: float, weight_s: float, transfer_s: float) -> Schedule:
        """The schedule for equal stages of these times; itself, unless its order depends on them.

        Args:
            p: workers.
            forward_s: of one micro-batch through a full worker share.
            input_s: input gradient.
            weight_s: weight gradient.
            transfer_s: latency of a transfer.
        """
        return self

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

    def end_s(self, p: int, m: int, v: int, times: Times) -> Float[np.ndarray, "*all_rows workers"]:
        """End of each worker's last task for many sets of durations: `makespans` of the table, without building it all.

        Args:
            p: workers.
            m: micro-batches per step.
            v: chunks per worker.
            times: sets of durations along leading axes.
        """
        if not times.plain:
            return makespans(self.table(p, m, v), times)
        program, placement, kinds, periods = _cached_program(self, p, m, v)
        return worker_ends(program, placement, kinds, times, periods)

    @abstractmethod
    def closed_form_s(self, p: int, m: int, v: int, forward_s: float, backward_s: float) -> float | None:
        """Makespan with equal stages and free transfers; times are per full worker share.

        A split backward takes half of `backward_s` for each of its parts. None outside the domain of the formula.
        """

    def split_closed_form_s(
        self, p: int, m: int, v: int, forward_s: float, input_s: float, weight_s: float
    ) -> float | None:
        """`closed_form_s` with the times of the input and the weight gradient."""
        return self.closed_form_s(p, m, v, forward_s, input_s + weight_s)

    def tasks_per_share(self, v: int) -> int:
        """Tasks of one kind that make up the work of one micro-batch on a full worker share: v chunks."""
        return v

    def equal_times(
        self,
        p: int,
        v: int = 1,
        *,
        forward_s: float = 1.0,
        backward_s: float = 2.0,
        transfer_s: float = 0.0,
        weight_s: float = 1.0,
        recompute_s: float = 0.0,
    ) -> Times:
        """The same times on every worker, given per full worker share and divided among the tasks that make it up.

        Args:
            p: workers.
            v: chunks per worker.
            forward_s: forward.
            backward_s: full backward.
            transfer_s: latency of a transfer.
            weight_s: weight gradient, part of `backward_s`.
            recompute_s: recomputation.
        """
        shape = (p, self.placement(p, v).v)
        forward, backward, weight, recompute = (
            np.full(shape, seconds / self.tasks_per_share(v))
            for seconds in (forward_s, backward_s, weight_s, recompute_s)
        )
        return Times(
            forward_s=forward,
            backward_s=backward,
            transfer_s=np.full(shape, float(transfer_s)),
            weight_s=weight,
            recompute_s=recompute,
        )

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

    def worker_weight_copies(self, p: int, m: int, v: int = 1) -> tuple[int, ...]:
        """Copies (or versions) of the weights that each worker holds at most."""
        return (self.weight_copies,) * p

    def path_bound(self, p: int, m: int, v: int = 1) -> PathBound:
        """Paths through the dependency graph whose length bounds the makespan from below; one object for all large m.

        Large is what `_bound_for` says: m >= p + 2 for 1F1B, two groups for interleaving, any m for GPipe.
        """
        self._check(p, m, v)
        return _cached_bound(self, p, self._bound_for(p, m, v), v)

    def lower_bound_s(
        self,
        forward_s: Float[np.ndarray, "*#rows workers chunks"],
        backward_s: Float[np.ndarray, "*#rows workers chunks"],
        transfer_s: Float[np.ndarray, "*rows_and_edges"] | float,
        m: int,
        weight_s: Float[np.ndarray, "*#rows workers chunks"] | None = None,
        recompute_s: Float[np.ndarray, "*#rows workers chunks"] | None = None,
    ) -> Float[np.ndarray, "*all_rows"]:
        """Lower bound of the makespan for any durations: the longest path of `path_bound`.

        Args:
            forward_s: seconds per micro-batch, by worker and chunk.
            backward_s: seconds of input and weight gradient together, by worker and chunk.
            transfer_s: latency behind each virtual stage, as `Times` takes it.
            m: micro-batches per step.
            weight_s: seconds of the weight gradient, for schedules that split the backward.
            recompute_s: seconds of the recomputation, for schedules with tasks for it.
        """
        ends_s = self.end_lower_bound_s(forward_s, backward_s, transfer_s, m, weight_s, recompute_s)
        return np.asarray(ends_s.max(axis=-1))

    def end_lower_bound_s(
        self,
        forward_s: Float[np.ndarray, "*#rows workers chunks"],
        backward_s: Float[np.ndarray, "*#rows workers chunks"],
        transfer_s: Float[np.ndarray, "*rows_and_edges"] | float,
        m: int,
        weight_s: Float[np.ndarray, "*#rows workers chunks"] | None = None,
        recompute_s: Float[np.ndarray, "*#rows workers chunks"] | None = None,
    ) -> Float[np.ndarray, "*all_rows workers"]:
        """Lower bound of when each worker ends its last task, for any durations; arguments as `lower_bound_s`."""
        p, chunks = np.shape(forward_s)[-2:]
        v = chunks // self.chains
        bound = self.path_bound(p, m, v)
        given = [forward_s, backward_s, *(seconds for seconds in (weight_s, recompute_s) if seconds is not None)]
        lead = np.broadcast_shapes(*(np.shape(seconds)[:-2] for seconds in given))
        latency = edge_latency_s(self.placement(p, v), transfer_s, lead)
        none_s = np.zeros(latency.shape)
        whole = [
            none_s if seconds is None else np.broadcast_to(seconds, latency.shape)
            for seconds in (forward_s, backward_s, weight_s, recompute_s)
        ]
        return (1.0 - ROUNDING) * bound.end_s(m, whole[0], whole[1], latency, whole[2], whole[3])

    @property
    def chains(self) -> int:
        """Chains of stages, each with all layers, that share its micro-batches."""
        return 1

    @property
    def bound_by_formula(self) -> bool:
        """Whether `path_bound` and `in_flight` are closed forms, so that pipelines of any size are quick to bound."""
        return False

    @property
    def recomputes_in_tasks(self) -> bool:
        """Whether recomputation is a task of its own, which makes all activations of a stage again."""
        return Kind.R in self.kinds

    def sections(self) -> int:
        """Parts that each micro-batch is cut into along its sequence; a task runs one of them."""
        return 1

    @property
    def parts_samples(self) -> bool:
        """Whether those parts may be samples of the micro-batch, none of which reads anything of another."""
        return False

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

    def parked(self, p: int, m: int) -> Int[np.ndarray, "workers 2"]:
        """Most activations of its own that each worker keeps, and those of worker p - 1 - r that lie on worker r.

        Only schedules that move activations between workers limit the first (m otherwise) or have the second.
        """
        return np.tile([m, 0], (p, 1))

    def in_flight(self, p: int, m: int, v: int = 1) -> tuple[Int[np.ndarray, "vectors chunks"], ...]:
        """Activations that live at the same time: per worker the largest vectors of counts by chunk.

        One more at F, one less behind B or W. Peak bytes of a worker = max over its vectors of counts @ bytes, for any
        bytes per chunk; vectors that another one covers are left out.

        Args:
            p: workers.
            m: micro-batches per step.
            v: chunks per worker.
        """
        self._check(p, m, v)
        return _cached_in_flight(self, p, self._in_flight_for(p, m, v), v)

    def peak_activations(self, p: int, m: int, v: int = 1) -> tuple[int, ...]:
        """Most activations of one chunk that lie on each worker at once.

        Args:
            p: workers.
            m: micro-batches per step.
            v: chunks per worker.
        """
        return tuple(int(vectors.sum(axis=1).max()) for vectors in self.in_flight(p, m, v))

    def continued_from(self, p: int, m: int, v: int) -> int:
        """Micro-batches of the table from which a step of m is continued; m where its order does not repeat.

        Args:
            p: workers.
            m: micro-batches per step.
            v: chunks per worker.
        """
        return self._shortened(p, m, v)

    def placement(self, p: int, v: int = 1) -> Placement:
        """Which worker holds which virtual stage."""
        return Placement.loop(p, v)

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

    def fitted(
        self, weights: Sequence[float], workers: int, *, first_extra: float, last_extra: float
    ) -> tuple[Schedule, ...]:
        """The schedule with settings made for a chain of layers, which a search tries where it is named without any.

        Args:
            weights: of the layers, in order.
            workers: of the pipeline.
            first_extra: weight on top in the first stage.
            last_extra: weight on top in the last stage.
        """
        return ()

    def period(self, p: int, v: int) -> int | None:
        """Micro-batches after which the steady order repeats; None if a longer step is not a shorter one stretched."""
        return 1 if self.repeats else None

    @abstractmethod
    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        """The order of every task, for legal p, m and v."""

    def _path_bound(self, p: int, m: int, v: int) -> PathBound:
        """The bound for m and every larger number that `_bound_for` maps to it; the generic one by default."""
        from meshwright.schedules.critical_paths import generic_path_bound  # searches by default bound by formulas

        return generic_path_bound(self.table(p, m, v))

    def _bound_for(self, p: int, m: int, v: int) -> int:
        """The number of micro-batches whose bound holds for m too."""
        return m

    def _in_flight_for(self, p: int, m: int, v: int) -> int:
        """The number of micro-batches that keeps as much alive as m does."""
        return self._shortened(p, m, v)

    def _in_flight(self, p: int, m: int, v: int) -> tuple[Int[np.ndarray, "vectors chunks"], ...]:
        """`in_flight`, counted along the table."""
        return live_vectors(self.table(p, m, v))

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
def _cached_table(schedule: Schedule, p: int, m: int, v: int) -> ScheduleTable:
    schedule._check(p, m, v)
    return schedule._table(p, m, v)


@lru_cache(maxsize=1024)
def _cached_bound(schedule: Schedule, p: int, m: int, v: int) -> PathBound:
    return schedule._path_bound(p, m, v)


@lru_cache(maxsize=1024)
def _cached_in_flight(schedule: Schedule, p: int, m: int, v: int) -> tuple[Int[np.ndarray, "vectors chunks"], ...]:
    return schedule._in_flight(p, m, v)


@lru_cache(maxsize=256)
def _cached_compiled(schedule: Schedule, p: int, m: int, v: int) -> tuple[Program, Placement, frozenset[Kind]]:
    table = schedule.table(p, m, v)
    return compile_events(Events(table=table, serial=False)), table.placement, table.kinds


@lru_cache(maxsize=256)
def _cached_program(
    schedule: Schedule, p: int, m: int, v: int
) -> tuple[Program, Placement, frozenset[Kind], tuple[int, ...] | None]:
    """The compiled table of a shortened step and the periods that make it m long; of the whole step if that fails."""
    short = schedule._shortened(p, m, v)
    program, placement, kinds = _cached_compiled(schedule, p, short, v)
    periods = program.periods_for((m - short) * schedule.sections() // placement.chains)
    if periods is None:
        program, placement, kinds = _cached_compiled(schedule, p, m, v)
    return program, placement, kinds, periods
