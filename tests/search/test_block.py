"""What is away on the host is held against what the host states, and only where it states something."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.estimate.away import HOST_SHARE
from meshwright.library.clusters import resolve_gpus
from meshwright.library.models import spec
from meshwright.search.search import search
from meshwright.search.space import Space
from meshwright.specs import Workload
from meshwright.specs.cluster import ClusterSpec

AWAY = Space(pins=(("offload", ("o",)), ("recompute", ("none",))))
WORK = Workload(seq_len=1024, global_batch=8)


def cluster(memory_bytes: float | None) -> ClusterSpec:
    found = resolve_gpus("4xH100")
    (group,) = found.groups
    host = replace(group.host, memory_bytes=memory_bytes)
    return replace(found, groups=(replace(group, host=host),))


def names(memory_bytes: float | None) -> list[str]:
    found = search(spec("gpt2-xl"), cluster(memory_bytes), WORK, AWAY, top=3, refine=False)
    return [one.row.format() if one.row else "" for one in found.plans]


def test_a_host_with_room_changes_nothing_and_one_without_fits_nothing() -> None:
    free = names(None)
    assert free
    assert names(1e12) == free
    assert names(1e6) == []


def test_the_room_that_a_plan_needs_is_just_enough() -> None:
    found = search(spec("gpt2-xl"), cluster(None), WORK, AWAY, top=1, refine=False).plans[0]
    held = max(stage.host_bytes for stage in found.estimate.stages) * 4 / HOST_SHARE
    name = found.row.format() if found.row else ""
    assert names(held * (1 + 1e-9))[0] == name
    assert name not in names(held * (1 - 1e-6))


@pytest.mark.parametrize("count", [1, 3])
def test_as_many_plans_are_found_as_are_asked_for(count: int) -> None:
    assert len(search(spec("gpt2-xl"), cluster(1e12), WORK, AWAY, top=count, refine=False).plans) == count
