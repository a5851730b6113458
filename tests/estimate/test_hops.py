"""What passes between stages: a table that the first and the last share crosses the link between these two."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.estimate.hops import HopLinks, HopSide
from meshwright.estimate.rows import Rows
from meshwright.estimate.site import Site, Sites
from meshwright.kernels.lines import LevelRates
from meshwright.library.clusters import resolve_gpus
from meshwright.library.models import spec
from meshwright.specs.plan import Worker
from meshwright.specs.workload import Workload

SIDE = HopSide(tp=2, cp=1, dp=4, sp=True, micro_batch=1.0)


@pytest.mark.parametrize("between", [(), (1,), (1, 2), (3, 1, 2)])
def test_a_shared_table_is_summed_over_the_link_of_the_ends_whatever_stands_between(
    between: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = Workload(seq_len=1024, global_batch=8)
    sites = Sites(resolve_gpus(",".join(["8xH100"] * 5)), workload)
    near = sites.hardware(0).rates[-1]

    def in_a_line(one: Site, other: Site) -> LevelRates:
        """Links that are the slower the further groups are apart."""
        return replace(near, latency_s=near.latency_s * abs(one.number - other.number))

    monkeypatch.setattr(sites, "between", in_a_line)
    links = HopLinks(Rows(spec("gpt2"), workload, sites))

    def tied_s(*groups: int) -> float:
        workers = (Worker(devices=((8 * group, 8 * group + 7),), chunks=()) for group in groups)
        return links.tied_s([sites.of(worker) for worker in workers], SIDE, SIDE)

    assert tied_s(0, *between, 4) == tied_s(0, 4)
    assert 0.0 == tied_s(0) < tied_s(0, 1) < tied_s(0, 4)
