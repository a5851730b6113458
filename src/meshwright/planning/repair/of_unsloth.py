"""The same job as Unsloth runs it, which holds less than trainers that have files."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from meshwright.planning.one_kind import SpaceFor
from meshwright.planning.repair.job_repair import Repairs, best_plan, costing
from meshwright.planning.repair.of_offload import with_offload
from meshwright.planning.repair.of_tuning import under_unsloth
from meshwright.search.space import Space
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload


def by_unsloth(model: ModelSpec, cluster: ClusterSpec, workload: Workload, space_for: SpaceFor) -> Repairs:
    """The same job under Unsloth, for which no files are written: nobody is asked who runs it."""

    def checkpointed(away: str, part: ClusterSpec) -> Space:
        space = with_offload(space_for, away, part)
        return replace(space, pins=(*(pin for pin in space.pins if pin[0] != "recompute"), ("recompute", ("full",))))

    for option, text, away, step in under_unsloth(model, cluster, workload):
        found = best_plan(model, cluster, step, partial(checkpointed, away) if away else space_for)
        if found is not None:
            yield costing(found, option=option, text=text)
            return
