"""What the mixed planner asks of a source of stage costs: composed plans of parts of a cluster, priced in full.

native          stages priced by `estimate` from data sheets
profiles        stages priced from measured layers
parallelizers   slices that any parallelizers plan, priced by `estimate`
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from meshwright.errors import MeshwrightError, UnsupportedError
from meshwright.estimate.result import StepPrice
from meshwright.formats.plan_json import PlannedJob
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.pipeline_sets import PipelineSet
from meshwright.planning.objectives import Aim
from meshwright.planning.one_kind import Refusals
from meshwright.search.space import Space
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow

if TYPE_CHECKING:
    from meshwright.planning.compose.sources.parallelizers.slice_pipeline import SlicePipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """A framework as searches know it."""

    target: str
    """Name of the target."""
    refuses: Refusals
    space: Space
    """What it can run of the space that is searched."""


def require_one_stream(model: ModelSpec) -> None:
    """Refuse models with streams beside the text.

    Raises:
        UnsupportedError: parallelizers plan layers of one width and length.
    """
    if model.streams:
        names = " and ".join(stream.name for stream in model.streams if not stream.window_of)
        towers = all(stream.tower for stream in model.streams)
        raise UnsupportedError(
            what=f"{model.name} has a stream of {names}",
            why="slices that parallelizers plan are of layers of one width and length",
            fix="leave --parallelizer out" + (", or plan its text alone, without --images" if towers else ""),
            field="model",
            code="MW407",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPlan:
    """A plan with its price on the whole cluster."""

    job: PlannedJob
    estimate: StepPrice
    row: PlanRow | None = None
    """The plan as one row of degrees; None where it needs more."""
    slices: PipelineSet[SlicePipeline] | None = None
    """The partial plans it is made of; None where no parallelizer was asked."""

    @property
    def plan(self) -> ExecutionPlan:
        """The pipelines."""
        return self.job.plan

    @property
    def step_time_s(self) -> float:
        """Seconds of a step."""
        return self.estimate.step_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRecord:
    """What a search looked at."""

    space: int | str
    """Ways to run a stage or a pipeline that were looked at, or what they are."""
    priced: int
    """Plans priced in full."""
    feasible: int | None = None
    """Plans priced in full that fit."""
    looked_at: Mapping[str, int]
    """Counts by name."""
    pruned: Mapping[str, int]
    """Counts of what was dropped, by rule."""
    bound_s: float | None = None
    """Lower bound of the step of any plan; None where none is known."""
    bound_of_shapes_s: float | None = None
    """Lower bound of the step of any set of the pipelines looked at, transfers and gradients included."""

    def to_dict(self) -> dict[str, object]:
        """The `search` entry of a plan set."""
        entry: dict[str, object] = {
            "space": self.space,
            "priced": self.priced,
            "feasible": self.feasible,
            "looked_at": dict(self.looked_at),
            "pruned": dict(self.pruned),
            "optimal": False,
            "bound_step_time_s": self.bound_s,
        }
        if self.bound_of_shapes_s is not None:
            entry |= {
                "shapes": self.looked_at.get("shapes", 0),
                "shapes_bound_step_time_s": self.bound_of_shapes_s,
            }
        return entry


class StageSource(Protocol):
    """Finds and prices plans of one job on parts of one cluster."""

    cluster: ClusterSpec
    compares_rest: bool
    """Whether the answer is compared with all kinds but one: asking some parallelizers takes too long for it."""

    def together(self, parts: Sequence[IslandPart], *, thorough: bool) -> list[PricedPlan]:
        """Plans over these parts, or some of them, the quickest first.

        Args:
            parts: the parts of the cluster.
            thorough: whether it is for the answer itself; else for a comparison.
        """
        ...

    def of_one_strategy(self, parts: Sequence[IslandPart], launcher: Launcher) -> list[PricedPlan]:
        """Plans that a framework starts, every stage under one strategy, the quickest first; none where it makes none.

        Args:
            parts: the parts of the cluster, all of which are used.
            launcher: the framework.
        """
        ...

    def least_of_equal_ranks_s(self, parts: Sequence[IslandPart]) -> float:
        """Lower bound of the step of a plan that gives each rank of these parts the same work; infinite for none.

        Args:
            parts: groups of the cluster, two or more, whole or as many devices of every node.
        """
        ...

    def of_equal_ranks(self, parts: Sequence[IslandPart], launcher: Launcher) -> PricedPlan | None:
        """The best such plan that a framework starts; none where it makes none.

        Args:
            parts: groups of the cluster, two or more, whole or as many devices of every node.
            launcher: the framework.
        """
        ...

    def alone(self, part: IslandPart, *, exhaustive: bool = False) -> list[PricedPlan]:
        """Plans on a part of one group, the quickest first; none where nothing fits.

        Args:
            part: the part of the cluster.
            exhaustive: search its whole space, where the source has a quicker way to a good plan.
        """
        ...

    def rented(self, parts: Sequence[IslandPart], aim: Aim) -> list[PricedPlan]:
        """Plans over these parts, or some of them, that may be the best by time and price."""
        ...

    def doubts(self, one: PricedPlan) -> Iterator[tuple[str, float]]:
        """Numbers that the plan is sensitive to, and by what share a worse number lengthens its step."""
        ...

    def searched(self) -> SearchRecord:
        """What was looked at so far."""
        ...

    def nothing_fits(self) -> MeshwrightError:
        """The error of a question that has no answer."""
        ...


class StagesOfOwnPlans(StageSource):
    """A source whose stages are planned one by one on one kind of device: no framework starts its plans."""

    def of_one_strategy(self, parts: Sequence[IslandPart], launcher: Launcher) -> list[PricedPlan]:
        """None: each stage has a plan of its own."""
        return []

    def least_of_equal_ranks_s(self, parts: Sequence[IslandPart]) -> float:
        """Infinite: no plan gives ranks of different kinds of device the same work."""
        return math.inf

    def of_equal_ranks(self, parts: Sequence[IslandPart], launcher: Launcher) -> PricedPlan | None:
        """None, for the same reason."""
        return None

    def alone(self, part: IslandPart, *, exhaustive: bool = False) -> list[PricedPlan]:
        """The quickest plans of one group without the others: there is no quicker way to them than `together`."""
        return [] if exhaustive else self.together([part], thorough=False)

    def rented(self, parts: Sequence[IslandPart], aim: Aim) -> list[PricedPlan]:
        """The quickest plans over these parts, whatever is asked for."""
        return self.together(parts, thorough=False)
