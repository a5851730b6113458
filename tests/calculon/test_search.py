"""The search finds what pricing every execution finds, and counts every execution once."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.calculon.answer import SearchGoal
from meshwright.calculon.axes import LARGEST
from meshwright.calculon.model import price_for_search
from meshwright.calculon.reading import read_application, read_system
from meshwright.calculon.search import search, search_part
from meshwright.calculon.space import ExecutionSpace
from meshwright.search.incumbents import SearchedPart
from meshwright.search.points import Points, Shield
from meshwright.search.result import Certificate
from tests.calculon.spaces import SMALL, WIDE, a100, brute, one_network, roofline, space_of
from tests.search.engine_cases import EngineCases

SPACES = {
    "optimal-execution": lambda: space_of(SMALL, a100(8.0), 16, 8, "optimal-execution"),
    "not a power of two": lambda: space_of(SMALL, a100(8.0, 0.0), 24, 30, "optimal-execution"),
    "little memory": lambda: space_of(WIDE, a100(6.0, 20.0), 64, 8, "optimal-execution"),
    "one network": lambda: space_of(WIDE, one_network(a100(20.0)), 16, 16, "optimal-execution"),
    "roofline": lambda: space_of(WIDE, roofline(a100(20.0)), 16, 12, "optimal-execution"),
    "full": lambda: space_of(SMALL, a100(8.0), 8, 5, "full", pins={"fused_activation": (True,)}),
    "full, uneven": lambda: space_of(
        WIDE, one_network(a100(30.0)), 16, 11, "full", pins={"fused_activation": (False,)}
    ),
    "full, one processor": lambda: space_of(SMALL, a100(30.0), 1, 6, "full"),
    "full, two datatypes": lambda: space_of(
        SMALL, read_system("h100_80g_nvl8"), 4, 4, "full", pins={"weight_offload": (False,)}
    ),
}


def unbeaten(sample_s: np.ndarray, tier1: np.ndarray, tier2: np.ndarray) -> set[tuple[float, float, float]]:
    """Points that none beats, by holding each against all that are quicker and kept."""
    points = np.unique(np.stack([sample_s, tier1, tier2], axis=1), axis=0)
    kept = np.zeros((0, 3))
    for point in points:
        if not (kept <= point).all(axis=1).any():
            kept = np.vstack([kept, point])
    return set(map(tuple, kept.tolist()))


@pytest.mark.parametrize("name", SPACES)
def test_best_front_and_counts_are_those_of_brute_force(name: str) -> None:
    space = SPACES[name]()
    number, sample_s, tier1, tier2 = brute(space)
    part = search_part(space, SearchGoal(top=25))

    order = np.lexsort((number, sample_s))[:25]
    assert part.best.number.tolist() == number[order].tolist()
    assert part.best.time_s == pytest.approx(sample_s[order], rel=1e-12)

    expected = unbeaten(sample_s, tier1, tier2)
    found = list(zip(part.front.time_s, part.front.tier1_bytes, part.front.tier2_bytes, strict=True))
    assert set(found) == expected
    assert len(found) == len(expected)

    assert part.counts.space == space.size
    assert part.counts.feasible == len(number)
    assert sum(part.counts.pruned.values()) + part.counts.feasible == space.size
    assert part.counts.priced <= part.counts.feasible


@given(
    procs=st.sampled_from([4, 6, 8, 16]),
    batch=st.integers(1, 12),
    tier1=st.floats(2.0, 40.0),
    tier2=st.sampled_from([0.0, 8.0, 512.0]),
    usage=st.floats(0.0, 0.6),
    alone=st.booleans(),
)
@settings(max_examples=15)
def test_the_best_is_the_best_whatever_the_system(
    procs: int, batch: int, tier1: float, tier2: float, usage: float, alone: bool
) -> None:
    system = a100(tier1, tier2)
    space = space_of(SMALL, one_network(system, usage) if alone else system, procs, batch, "optimal-execution")
    number, sample_s, *_ = brute(space)
    part = search_part(space, SearchGoal(top=5))
    assert part.best.number.tolist() == number[np.lexsort((number, sample_s))[:5]].tolist()
    assert part.counts.feasible == len(number)


class TestExecutions(EngineCases):
    def space(self) -> ExecutionSpace:
        return SPACES["little memory"]()

    def search(self, top: int) -> tuple[list[float], Certificate]:
        found = search(self.space(), SearchGoal(top=top))
        return [1.0 / one.sample_rate for one in found.best], found.certificate

    def everything(self) -> tuple[list[float], int]:
        _, sample_s, *_ = brute(self.space())
        return sample_s.tolist(), self.space().size


def test_parts_of_a_space_merge_to_the_whole() -> None:
    space = space_of(SMALL, a100(8.0), 8, 8, "full", pins={"fused_activation": (True,)})
    whole = search_part(space, SearchGoal(top=7))
    merged = SearchedPart()
    for place in reversed(range(len(space.degrees))):
        merged.merge(search_part(space, SearchGoal(top=7), slice(place, place + 1)), top=7)
    assert merged.best.number.tolist() == whole.best.number.tolist()
    assert merged.front.number.tolist() == whole.front.number.tolist()
    assert (merged.counts.space, merged.counts.feasible) == (whole.counts.space, whole.counts.feasible)


def test_calculons_own_search_gpt3_without_second_tier_and_overlap() -> None:
    system = read_system("a100_80g")
    system = replace(system, mem2=replace(system.mem2, capacity_bytes=0.0))
    app = read_application("gpt3-175B")
    space = space_of(app, system, 512, 512, "optimal-execution", tp_overlap=False, dp_overlap=False)
    found = search(space, SearchGoal(stop_microbatch=True))
    assert (found.certificate.space, found.certificate.feasible) == (69_160, 15_186)
    best = found.best[0]
    assert best.stats["sample_rate"] == pytest.approx(43.292484005332646, rel=1e-12)
    assert best.stats["total_time"] == pytest.approx(11.826533213869947, rel=1e-12)
    assert best.stats["proc_mem_tier1_cap_req"] == 69_537_988_608
    execution = asdict(best.execution)
    assert {key: execution[key] for key in ("tensor_par", "pipeline_par", "data_par", "microbatch_size")} == {
        "tensor_par": 4,
        "pipeline_par": 16,
        "data_par": 8,
        "microbatch_size": 1,
    }
    assert execution["pipeline_interleaving"] == 6
    assert (execution["activation_recompute"], execution["tensor_par_comm_type"]) == ("attn_only", "rs_ag")
    assert not execution["optimizer_sharding"]
    assert execution["fused_activation"]
    # Micro-batches that never stop growing add executions, none of them feasible.
    grown = search(space, SearchGoal())
    assert (grown.certificate.space, grown.certificate.feasible) == (166_012, 15_186)
    assert grown.best == found.best


def test_the_whole_space_of_gpt3_on_512_is_searched() -> None:
    space = space_of(read_application("gpt3-175B"), read_system("a100_80g"), 512, 512, "optimal-execution")
    found = search(space, SearchGoal())
    certificate = found.certificate
    assert certificate.space == 6_582_816
    assert certificate.optimal
    assert certificate.priced + sum(dict(certificate.pruned).values()) == certificate.space
    drawn = space.sample(200_000, seed=2)
    rates = price_for_search(space.app, space.system, drawn)
    assert rates.sample_rate[rates.ok].max() <= found.best[0].sample_rate


def test_with_the_errors_mended_the_bounds_still_hold() -> None:
    space = space_of(WIDE, one_network(a100(20.0)), 16, 16, "optimal-execution")
    columns = space.take(np.arange(space.size))
    priced = price_for_search(space.app, space.system, columns, fixed=True)
    best = np.min((priced.total_time_s / columns.batch_size)[priced.ok])
    part = search_part(space, SearchGoal(top=1, fixed=True))
    assert part.best.time_s[0] == pytest.approx(best, rel=1e-12)
    assert part.counts.feasible == int(priced.ok.sum())


def test_nothing_fits_is_an_answer_with_its_rules() -> None:
    space = space_of(WIDE, a100(0.01, 0.0), 16, 16, "optimal-execution")
    found = search(space, SearchGoal())
    assert found.best == found.front == ()
    assert not found.certificate.optimal
    assert sum(dict(found.certificate.pruned).values()) == space.size


@given(st.lists(st.tuples(*[st.integers(1, 6)] * 3), min_size=1, max_size=40))
def test_a_front_holds_what_nothing_beats(points: list[tuple[int, int, int]]) -> None:
    values = np.array(points, dtype=float)
    found = Points(
        number=np.arange(len(points)), time_s=values[:, 0], tier1_bytes=values[:, 1], tier2_bytes=values[:, 2]
    )
    front = found.front()
    kept = {tuple(values[place]) for place in front.number}
    expected = {tuple(one) for one in values if not ((values <= one).all(axis=1) & (values < one).any(axis=1)).any()}
    assert kept == expected
    assert front.rows == len(expected)
    shield = Shield.of(front)
    beaten = shield.beats(values[:, 0], values[:, 1], values[:, 2])
    quicker = [
        any((f[0] < one[0]) and f[1] <= one[1] and f[2] <= one[2] for f in map(tuple, values[front.number]))
        for one in values
    ]
    assert beaten.tolist() == quicker


def test_stopping_is_for_the_space_with_one_batch() -> None:
    space: ExecutionSpace = space_of(SMALL, a100(8.0), 8, 8, "full")
    assert space.axes.batches != LARGEST
    part = search_part(space, SearchGoal(top=1, stop_microbatch=True))
    assert part.counts.space == space.size
