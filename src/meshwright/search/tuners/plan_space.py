"""The space of `plan` for tuners: the same legal plans the exact search covers, one point a plan."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from meshwright.budget import spent
from meshwright.errors import InfeasibleError, Problem, UnsupportedError
from meshwright.estimate.hardware import Hardware, hardware_of
from meshwright.estimate.layout import expand
from meshwright.estimate.memory import TIGHT_SHARE
from meshwright.estimate.price import estimate_plan
from meshwright.fields.limits import nothing_in_time
from meshwright.schedules.plan_rows import usual_schedule
from meshwright.search.axes import PLAIN_WAY, WAY_AXES, Way, way_of, ways
from meshwright.search.bound import RowBounds
from meshwright.search.geometry import ShapeFactory
from meshwright.search.grid import Grid
from meshwright.search.legal_rows import build_grid
from meshwright.search.result import SearchResult
from meshwright.search.search import search
from meshwright.search.shardings import Sharding, shardings_for
from meshwright.search.space import Space
from meshwright.search.table import per_pair
from meshwright.search.tuners.base import Forbidden, Optimum, Outcome, Point, TrialAxis
from meshwright.search.tuners.plan_axes import kind_of, levels_of, quarter_layers, tables_of
from meshwright.search.tuners.tables import TableSpace
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.dispatchers import DISPATCHERS
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow, recompute_fields
from meshwright.specs.shardings import SHARDINGS
from meshwright.specs.workload import Workload
from meshwright.strategies import CONTEXTS
from meshwright.strategies.columns import OVERLAPS
from meshwright.units import gib

PART_ROWS = 2000
"""Rows of a space that is not looked at whole: enough to try, and their axes take a fraction of a second."""


@dataclass(frozen=True, kw_only=True)
class PlanSpace(TableSpace):
    """Homogeneous plans of a model on one kind of node.

    | axis | values | matters where |
    |---|---|---|
    | tp, cp, pp, mbs, vpp | legal degrees; dp is what is left of the devices | always |
    | cp_kind | p2p, a2a, ag, `a2aN+p2p` for an inner degree N | cp > 1 |
    | ep, etp | legal expert degrees | the model has experts |
    | dispatcher | of several that are named | ep > 1 |
    | tp_overlap | bulk, ring | tp > 1 |
    | schedule | of one chunk per worker | pp > 1 and vpp = 1 |
    | recompute | none, one selective, block, full | always |
    | block_quarters | 1, 2, 3 quarters of the largest chunk | recompute = block |
    | sharding | z0 ... hsdp | always |
    | hsdp_ranks | data ranks of a shard group | sharding = hsdp |
    """

    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    space: Space = field(default_factory=Space)
    under: str = ""
    """The framework that has to run the plans, as its own people write it."""
    refuses: Callable[[Job], tuple[Problem, ...]] | None = None
    """What that framework cannot run of a plan."""
    part: Grid | None = field(default=None, init=False, compare=False, repr=False)
    """The rows for which limits left room or time, which other processes must take, too; None where all are."""

    def __post_init__(self) -> None:
        overlaps, dispatchers = (self.space.pinned(axis) or () for axis in ("ep_overlap", "dispatcher"))
        if overlaps and "none" not in overlaps:
            what, why = f"ep_overlap={overlaps[0]} in a study", "tuners try plans whose exchanges are exposed"
            problem = Problem(what=what, why=why, fix="drop it, or use plan", field="ep_overlap")
            raise UnsupportedError(problem, code="MW406")
        if "halves" in (self.space.pinned("tp_overlap") or ()):
            what, why = (
                "tp_overlap=halves in a study",
                "tuners try micro-batches that have no halves with every overlap",
            )
            problem = Problem(what=what, why=why, fix="use bulk or ring, or use plan", field="tp_overlap")
            raise UnsupportedError(problem, code="MW406")
        if self.space.pinned("prefetch") not in (None, ("1",)):
            what, why = "prefetch in a study", "tuners try plans that gather the weights of the next layer"
            problem = Problem(what=what, why=why, fix="drop it, or use plan", field="prefetch")
            raise UnsupportedError(problem, code="MW406")
        hot = (self.space.pinned("hot_experts") or ("kept",))[:1]
        fixed = {
            "dispatcher": dispatchers or PLAIN_WAY[:1],
            "ep_overlap": ("none",),
            "hot_experts": hot,
            "ep_order": (self.space.pinned("ep_order") or ("shared",))[:1],
        }
        object.__setattr__(self, "space", replace(self.space, pins=tuple((dict(self.space.pins) | fixed).items())))

    @property
    def name(self) -> str:
        """Model, devices and batch."""
        work = self.workload
        said = f"{self.model.name} on {self.cluster.name}, {work.global_batch} x {work.seq_len}"
        return f"{said}, under {self.under}" if self.under else said

    @property
    def objective(self) -> str:
        """Seconds of a step."""
        return "step_time_s"

    @cached_property
    def _factory(self) -> ShapeFactory:
        return ShapeFactory.of(self.model, self.workload, self.space)

    @cached_property
    def _hardware(self) -> Hardware:
        return hardware_of(self.cluster.groups[0], self.workload)

    @cached_property
    def _rows(self) -> tuple[Grid, list[int]]:
        """Legal rows with at least one plan, and how many plans there are up to each of them."""
        grid = self._legal_rows()
        if grid.offload:
            what, why = f"offload={grid.offload} in a study", "tuners try plans that keep everything on their devices"
            problem = Problem(what=what, why=why, fix="drop it, or use plan", field="offload")
            raise UnsupportedError(problem, code="MW406")
        plans = np.zeros(0, dtype=np.int64)
        if grid.rows:
            shapes = per_pair(grid.pp, grid.m, self._factory.count)
            plans = shapes * per_pair(grid.dp, grid.cp, lambda dp, cp: len(shardings_for(dp, cp, self.space)))
        if not plans.any():
            if grid.stopped:
                raise nothing_in_time(grid.stopped, f"the legal plans of {self.name}")
            what = f"no plan of {self.model.name} on {self.cluster.devices} devices is legal"
            fix = "`meshwright plan` with the same options says which rule empties the space"
            raise InfeasibleError(what=what, fix=fix, field="gpus", code="MW301")
        return grid.take(plans > 0), np.cumsum(plans[plans > 0]).tolist()

    def _legal_rows(self) -> Grid:
        """All of them, or at a limit some that are spread over those that were found."""
        if self.part is not None:
            return self.part
        grid = build_grid(self.model, self.workload, self.cluster.devices, self.space)
        if limit := grid.stopped or (spent() if grid.rows > PART_ROWS else ""):
            spread = np.linspace(0, grid.rows - 1, min(PART_ROWS, grid.rows)).astype(np.int64)
            grid = replace(grid.take(spread), stopped=limit)
            object.__setattr__(self, "part", grid)
        return grid

    @property
    def stopped(self) -> str:
        """The limit for which only a part of the legal plans is tried; empty where all may be."""
        grid, _ = self._rows
        return grid.stopped

    @property
    def size(self) -> int:
        """Legal plans, as many as the exact search counts; of the part where it is one."""
        return self._rows[1][-1]

    def tables(self) -> tuple[tuple[TrialAxis, ...], tuple[Forbidden, ...]]:
        """What ties the degrees to the model, the devices, the batch and each other."""
        grid, _ = self._rows
        return tables_of(grid, self._factory, self.space)

    def sample(self, generator: random.Random) -> Point:
        """A legal plan, every one as likely as any other: a row by its number of plans, then shape and sharding."""
        grid, upto = self._rows
        row = bisect_right(upto, generator.randrange(upto[-1]))
        pp, m, dp, cp = (int(column[row]) for column in (grid.pp, grid.m, grid.dp, grid.cp))
        shapes = [(s.name, v, *r) for s, v in self._factory.pipelines(pp, m) for r in self._factory.recomputes(pp, v)]
        schedule, vpp, recompute, layers = generator.choice(shapes)
        choice: Sharding = generator.choice(shardings_for(dp, cp, self.space))
        point: Point = {name: int(getattr(grid, name)[row]) for name in ("tp", "cp", "pp", "ep", "etp", "mbs")}
        point |= {
            "cp_kind": kind_of(grid.levels(row)),
            "tp_overlap": OVERLAPS[int(grid.overlap[row])],
            "vpp": vpp,
            "schedule": schedule,
            "recompute": recompute,
            "sharding": choice.name,
        }
        if point["ep"] != 1:
            point["dispatcher"] = ways()[int(grid.way[row])][0]
        if recompute == "block":
            quarters = quarter_layers(self._factory, pp, vpp)
            point["block_quarters"] = next(q for q, k in quarters.items() if k == layers)
        if choice.kind.grouped:
            point["hsdp_ranks"] = choice.shard
        return self.rules.completed(point)

    def row(self, point: Point) -> PlanRow:
        """The plan of a point."""
        whole = self.whole(point)
        number = {name: int(whole[name]) for name in ("tp", "cp", "pp", "ep", "etp", "mbs", "vpp", "hsdp_ranks")}
        tp, cp, pp, vpp = (number[name] for name in ("tp", "cp", "pp", "vpp"))
        dp = self.cluster.devices // (tp * cp * pp)
        micro_batches = self.workload.global_batch // (dp * number["mbs"])
        recompute, sharding = str(whole["recompute"]), str(whole["sharding"])
        quarters = quarter_layers(self._factory, pp, vpp) if recompute == "block" else {}
        way = self._way(str(whole.get("dispatcher", ""))) if number["ep"] > 1 else PLAIN_WAY
        return PlanRow(
            tp=tp,
            tensor=self._rows[0].tensor,
            tp_overlap="ring" if tp > 1 and whole["tp_overlap"] == "ring" else "bulk",
            cp=levels_of(str(whole["cp_kind"]), cp),
            pp=pp,
            vpp=vpp,
            ep=number["ep"],
            etp=number["etp"],
            dispatcher=way[0],
            hot_experts=way[2],
            prioritised=way[3] == "first",
            dp=dp,
            sharding=sharding,
            shard_group=number["hsdp_ranks"] * cp if SHARDINGS[sharding].grouped else 0,
            mbs=number["mbs"],
            gbs=self.workload.global_batch,
            schedule=str(whole["schedule"]) if vpp == 1 else usual_schedule(pp, micro_batches, vpp),
            **recompute_fields(recompute),
            recompute_layers=quarters[int(whole["block_quarters"])] if quarters else 0,
        )

    def _way(self, dispatcher: str) -> Way:
        """A way to reach experts on other ranks, with a dispatcher that a point names or with the only one there is."""
        fixed = dispatcher or str((self.space.pinned("dispatcher") or PLAIN_WAY)[0])
        held = {axis: self.space.pinned(axis) or (word,) for axis, word in zip(WAY_AXES, PLAIN_WAY, strict=True)}
        held["dispatcher"] = (fixed,)
        if not DISPATCHERS[fixed].exchanges:
            held["ep_order"] = PLAIN_WAY[3:]
        return next(way for way in ways() if all(word in held[axis] for axis, word in zip(WAY_AXES, way, strict=True)))

    def evaluate(self, point: Point) -> Outcome:
        """Simulated step time of a plan; infeasible where a stage does not fit, as in the exact search."""
        row = self.row(point)
        plan = expand(row, self.model, self.workload.seq_len)
        estimate = estimate_plan(plan, self.model, self.cluster, self.workload)
        full = max(estimate.stages, key=lambda stage: stage.peak_memory_bytes / stage.capacity_bytes)
        limit_bytes = full.capacity_bytes * (1.0 if self.space.tight else 1.0 - TIGHT_SHARE)
        value, name = estimate.step_time_s, row.format()
        if refused := self._refused(plan):
            reason = f"{self.under} cannot run it: {refused[0].why}"
            return Outcome(status="infeasible", value=value, name=name, reason=reason, excess=1.0)
        if full.peak_memory_bytes <= limit_bytes:
            return Outcome(status="ok", value=value, name=name)
        kept = "" if self.space.tight else f", of which {TIGHT_SHARE:.0%} stay free"
        need = f"{gib(full.peak_memory_bytes)} of {gib(full.capacity_bytes)}{kept}"
        return Outcome(
            status="infeasible",
            value=value,
            name=name,
            reason=f"memory: stage {full.stage} needs {need}",
            excess=full.peak_memory_bytes / limit_bytes - 1.0,
        )

    def _refused(self, plan: ExecutionPlan) -> tuple[Problem, ...]:
        if self.refuses is None:
            return ()
        return self.refuses(Job(model=self.model, cluster=self.cluster, workload=self.workload, plan=plan))

    def bound(self, point: Point) -> float | None:
        """No plan with these degrees and this micro-batch is faster, whatever its schedule, recompute and sharding."""
        row = self.row(point)
        level = dict(row.cp)
        values = {
            **{name: getattr(row, name) for name in ("tp", "ep", "etp", "pp", "dp", "mbs")},
            "overlap": OVERLAPS.index(row.tp_overlap),
            "m": row.micro_batches,
        }
        values["way"] = way_of(row)
        grid = Grid(
            **{name: np.array([value], dtype=np.int64) for name, value in values.items()},
            context=np.array([[level.get(kind, 1) for kind in CONTEXTS]], dtype=np.int64),
            tensor=row.tensor,
            offload="",
            stopped="",
        )
        return float(RowBounds(grid, self.model, self._hardware, self.workload).time_s[0])

    def optimum(self) -> Optimum | None:
        """The best plan of the space, found by the exact search; recompute layer by layer is not in the space."""
        return self.optimum_of(search(self.model, self.cluster, self.workload, self.space, top=1, refine=False))

    def optimum_of(self, found: SearchResult) -> Optimum | None:
        """The best plan of an exact search of the space; None where none leaves the reserve of memory free."""
        if not found.plans or found.relaxed:
            return None
        best = found.plans[0]
        return Optimum(
            value=best.estimate.step_time_s,
            name=best.row.format() if best.row else "",
            space=found.certificate.space,
            search_s=found.certificate.search_s,
            stopped=found.certificate.stopped,
        )
