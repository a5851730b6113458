"""Every pipeline schedule: its order of tasks, and the times, bounds and activations that follow from it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from meshwright.schedules.bounds import PathBound
from meshwright.schedules.events import Events
from meshwright.schedules.in_flight import live_vectors
from meshwright.schedules.ordered import Ordered
from meshwright.schedules.program import Program, compile_events
from meshwright.schedules.simulate import makespans, worker_ends
from meshwright.schedules.table import Kind, Placement
from meshwright.schedules.times import Times, edge_latency_s
from meshwright.shapes import Float, Int

ROUNDING = 1e-12
"""Relative margin by which bounds stay below what rounding can do to sums of durations."""


@dataclass(frozen=True, kw_only=True)
class Schedule(Ordered):
    """A pipeline schedule: the table for p workers, m micro-batches, v chunks each, its time, bounds and activations.

    Subclasses are frozen dataclasses whose fields are the schedule's own parameters. They give `_table`, `_problems`
    and `closed_form_s`, some their own `_path_bound`; a `period` makes long steps cheap to simulate.
    """

    def settled(self, p: int, m: int) -> Schedule:
        """The schedule with the settings that so many micro-batches need, where they are not stated.

        Args:
            p: workers.
            m: micro-batches per step.
        """
        return self

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
    def bound_by_formula(self) -> bool:
        """Whether `path_bound` and `in_flight` are closed forms, so that pipelines of any size are quick to bound."""
        return False

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

    def fitted(
        self, weights: Sequence[float], workers: int, *, first_extra: float, last_extra: float
    ) -> tuple[Schedule, ...]:
        """The schedule with settings made for a chain of layers, which a search tries where it is named without any.

        Args:
            weights: the weights of the layers, in order.
            workers: the number of workers of the pipeline.
            first_extra: weight on top in the first stage.
            last_extra: weight on top in the last stage.
        """
        return ()

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


@lru_cache(maxsize=1024)
def _cached_bound(schedule: Schedule, p: int, m: int, v: int) -> PathBound:
    return schedule._path_bound(p, m, v)


@lru_cache(maxsize=1024)
def _cached_in_flight(schedule: Schedule, p: int, m: int, v: int) -> tuple[Int[np.ndarray, "vectors chunks"], ...]:
    return schedule._in_flight(p, m, v)


@lru_cache(maxsize=256)
def _cached_compiled(
    schedule: Schedule, p: int, m: int, v: int, period: int = 0
) -> tuple[Program, Placement, frozenset[Kind]]:
    table = schedule.table(p, m, v)
    return compile_events(Events(table=table, serial=False), period=period), table.placement, table.kinds


@lru_cache(maxsize=256)
def _cached_program(
    schedule: Schedule, p: int, m: int, v: int
) -> tuple[Program, Placement, frozenset[Kind], tuple[int, ...] | None]:
    """The compiled table of a shortened step and the periods that make it m long; of the whole step if that fails."""
    short = schedule._shortened(p, m, v)
    program, placement, kinds = _cached_compiled(schedule, p, short, v)
    more = (m - short) * schedule.sections() // placement.chains
    periods = program.periods_for(more)
    if periods is None:
        # Stretches inside of a period may repeat themselves too, which takes a look at the period as a whole.
        nodes = program.per_micro_batch * (schedule.period(p, v) or 0) * schedule.sections() // placement.chains
        program, placement, kinds = _cached_compiled(schedule, p, short, v, nodes)
        periods = program.periods_for(more)
    if periods is None:
        program, placement, kinds = _cached_compiled(schedule, p, m, v)
    return program, placement, kinds, periods
