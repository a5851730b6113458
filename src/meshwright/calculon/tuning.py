"""A space of Calculon executions for tuners: one point an execution, the same executions the exact search covers."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from meshwright.calculon.answer import SearchGoal
from meshwright.calculon.axes import EVERY, Need
from meshwright.calculon.executions import ExecutionColumns
from meshwright.calculon.inputs import Execution
from meshwright.calculon.legality import MEMORY_TIER1, MEMORY_TIER2
from meshwright.calculon.model import price_for_search
from meshwright.calculon.rejections import reason
from meshwright.calculon.search import search
from meshwright.calculon.space import ExecutionSpace
from meshwright.errors import InfeasibleError
from meshwright.search.tuners.base import Forbidden, Optimum, Outcome, Point, TrialAxis, Value, When
from meshwright.search.tuners.tables import TableSpace, numbers_axis, rules_of

SHOWN_FLAGS = (
    "optimizer_sharding", "seq_par_ag_redo", "data_par_overlap",
    "weight_offload", "activations_offload", "optimizer_offload",
)  # fmt: skip
"""Flags that the name of an execution mentions."""
_WHY = {
    "data_par": "tensor_par x data_par divides the processors, and what is left, pipeline_par, is at most the blocks",
    "pipeline_interleaving": "chunks divide the blocks of a stage, and one stage has one chunk",
    "microbatch_size": "the micro-batch divides the samples of a replica",
    "microbatches": "the batch is at most the given one",
}


@dataclass(frozen=True, kw_only=True)
class TunedExecutions(TableSpace):
    """Executions of one application on so many processors of one system.

    The axes are the keys of an execution file. pipeline_par is what tensor_par and data_par leave of the processors; in
    the full space the axis `microbatches` stands for the batch: batch_size = data_par x microbatch_size x microbatches.
    """

    space: ExecutionSpace
    fixed: bool = False
    """Price with the model's known errors fixed."""

    @property
    def name(self) -> str:
        """Application, processors, system and batch."""
        space = self.space
        where = f"{space.app.name or 'application'} on {space.num_procs} of {space.system.name or 'system'}"
        return f"{where}, batch {space.batch}, {space.axes.name}{', fixed' if self.fixed else ''}"

    @property
    def objective(self) -> str:
        """Seconds per sample: the batch may vary."""
        return "sample_time_s"

    @property
    def size(self) -> int:
        """Executions of the space."""
        return self.space.size

    def tables(self) -> tuple[tuple[TrialAxis, ...], tuple[Forbidden, ...]]:
        """What ties degrees and settings to each other."""
        self.space.require_executions()
        axes, rules = self._degrees()
        self._settings(axes, rules)
        return tuple(axes.values()), tuple(rules)

    def _degrees(self) -> tuple[dict[str, TrialAxis], list[Forbidden]]:
        """Axes of whole numbers and what they must divide."""
        names = ("tensor_par", "data_par", "pipeline_interleaving")
        splits: set[tuple[Value, ...]] = set()
        chunks: set[tuple[Value, ...]] = set()
        sizes: set[tuple[Value, ...]] = set()
        counts: set[tuple[Value, ...]] = set()
        batches: set[int] = set()
        every = self.space.axes.batches == EVERY
        for degrees in self.space.degrees:
            data = degrees.data_par
            splits.add((degrees.tensor_par, data))
            chunks |= {(degrees.tensor_par, data, way) for way in degrees.interleavings}
            if data in batches:
                continue
            batches.add(data)
            for size, low, high in zip(*(column.tolist() for column in degrees.counts()), strict=True):
                sizes.add((data, size))
                if every:
                    counts |= {(data, size, number) for number in range(low, high + 1)}
        legal: dict[tuple[str, ...], set[tuple[Value, ...]]] = {
            names[:2]: splits,
            names: chunks,
            ("data_par", "microbatch_size"): sizes,
        }
        axes = {
            "tensor_par": numbers_axis("tensor_par", (split[0] for split in splits)),
            "data_par": numbers_axis("data_par", (split[1] for split in splits)),
            "pipeline_interleaving": numbers_axis("pipeline_interleaving", (chunk[2] for chunk in chunks)),
            "microbatch_size": numbers_axis("microbatch_size", (size[1] for size in sizes)),
        }
        if every:
            axes["microbatches"] = numbers_axis("microbatches", (count[2] for count in counts))
            legal["data_par", "microbatch_size", "microbatches"] = counts
        return axes, rules_of(legal, axes, _WHY)

    def _settings(self, axes: dict[str, TrialAxis], rules: list[Forbidden]) -> None:
        """Categorical axes: a need for another key's value is a condition, one for a degree above 1 a rule."""
        one_stage = [(d.tensor_par, d.data_par) for d in self.space.degrees if d.pipeline_par == 1]
        for axis in self.space.axes.settings:
            when = [self._when(need, axes) for need in axis.needs if need.key != "pipeline_par"]
            axes[axis.key] = TrialAxis(
                name=axis.key,
                values=tuple(axis.values),
                default=axis.plain,
                when=tuple(condition for condition in when if condition is not None),
            )
            others = tuple(value for value in axis.values if value != axis.plain)
            if any(need.key == "pipeline_par" for need in axis.needs) and others:
                for tensor, data in one_stage:
                    where = (("tensor_par", (tensor,)), ("data_par", (data,)), (axis.key, others))
                    rules.append(Forbidden(where=where, why=f"{axis.key} leaves {axis.plain} only in a pipeline"))
            pinned = self.space.axes.pinned(axis.key)
            if pinned is not None and axis.plain not in pinned:
                rules += [
                    _outside(axes, condition, f"{axis.key} is fixed to {' or '.join(map(str, pinned))}")
                    for condition in axes[axis.key].when
                ]
        rules[:] = [rule for rule in rules if all(values for _, values in rule.where)]

    def _when(self, need: Need, axes: dict[str, TrialAxis]) -> When | None:
        if need.values:
            return When(axis=need.key, values=tuple(need.values))
        above = tuple(value for value in axes[need.key].values if int(value) > 1)
        return When(axis=need.key, values=above)

    def sample(self, generator: random.Random) -> Point:
        """An execution, every one as likely as any other, by its number."""
        number = np.array([generator.randrange(self.space.size)])
        return self.point(self.space.take(number).row(0))

    def point(self, execution: Execution) -> Point:
        """The point of an execution of the space."""
        point: Point = {axis.name: getattr(execution, axis.name) for axis in self.axes if axis.name != "microbatches"}
        point["microbatches"] = execution.batch_size // (execution.data_par * execution.microbatch_size)
        return self.rules.completed(point)

    def execution(self, point: Point) -> Execution:
        """The execution of a point."""
        return self._columns(point).row(0)

    def _columns(self, point: Point) -> ExecutionColumns:
        whole = self.whole(point)
        tensor, data = int(whole["tensor_par"]), int(whole["data_par"])
        micro = int(whole["microbatch_size"])
        batch = self.space.batch // data * data
        if "microbatches" in whole:
            batch = data * micro * int(whole["microbatches"])
        pipeline = self.space.num_procs // (tensor * data)
        values = {axis.key: whole.get(axis.key, axis.plain) for axis in self.space.axes.settings}
        return ExecutionColumns.of(
            {
                **values,
                "num_procs": self.space.num_procs,
                "tensor_par": tensor,
                "pipeline_par": pipeline,
                "data_par": data,
                "pipeline_interleaving": int(whole["pipeline_interleaving"]),
                "microbatch_size": micro,
                "batch_size": batch,
                "training": True,
            }
        )

    def evaluate(self, point: Point) -> Outcome:
        """Seconds per sample of an execution; infeasible where a memory or a network does not suffice."""
        columns = self._columns(point)
        app, system = self.space.app, self.space.system
        priced = price_for_search(app, system, columns, fixed=self.fixed)
        execution = columns.row(0)
        name = _named(execution)
        total_s = float(priced.total_time_s[0])
        value = total_s / execution.batch_size if np.isfinite(total_s) else None
        if bool(priced.ok[0]):
            return Outcome(status="ok", value=value, name=name)
        code = int(priced.reason[0])
        tiers = (float(priced.tier1_bytes[0]), float(priced.tier2_bytes[0]))
        problem = reason(app, system, execution, code, tier1_bytes=tiers[0], tier2_bytes=tiers[1])
        excess = 0.0
        if code in (MEMORY_TIER1, MEMORY_TIER2):
            capacity = (system.mem1, system.mem2)[code - MEMORY_TIER1].capacity_bytes
            excess = min(tiers[code - MEMORY_TIER1] / capacity - 1.0, 1e6) if capacity else 1e6
        text = f"{problem.why}: {problem.what}"
        return Outcome(status="infeasible", value=value, name=name, reason=text, excess=excess)

    def bound(self, point: Point) -> float | None:
        """None: pricing an execution takes no longer than bounding it."""
        return None

    def optimum(self) -> Optimum | None:
        """The best execution of the space by the exact search."""
        try:
            found = search(self.space, SearchGoal(top=1, front=False, fixed=self.fixed))
        except InfeasibleError:
            return None
        if not found.best:
            return None
        best, certificate = found.best[0], found.certificate
        return Optimum(
            value=1.0 / best.sample_rate,
            name=_named(best.execution),
            space=certificate.space,
            search_s=certificate.search_s,
            stopped=certificate.stopped,
        )


def _outside(axes: dict[str, TrialAxis], condition: When, why: str) -> Forbidden:
    """The rule that a condition must hold."""
    rest = tuple(value for value in axes[condition.axis].values if value not in condition.values)
    return Forbidden(where=((condition.axis, rest),), why=why)


def _named(execution: Execution) -> str:
    """Degrees, batch and what is not plain, on one line."""
    parts = [
        f"t{execution.tensor_par} p{execution.pipeline_par} d{execution.data_par}",
        f"v{execution.pipeline_interleaving} b{execution.microbatch_size} batch {execution.batch_size}",
        execution.activation_recompute,
        execution.tensor_par_comm_type,
    ]
    if execution.tensor_par_overlap != "none":
        parts.append(execution.tensor_par_overlap)
    parts += [flag.replace("_", " ") for flag in SHOWN_FLAGS if getattr(execution, flag)]
    return ", ".join(parts)
