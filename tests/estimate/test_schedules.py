"""Plans under every schedule: what each costs besides its order."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from meshwright.errors import InputError, UnsupportedError
from meshwright.estimate.layers.item_costs import ItemCosts
from meshwright.estimate.layout import expand
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate
from meshwright.estimate.rules.legality import row_problems
from meshwright.estimate.run import live, weight_versions
from meshwright.estimate.shared_attention import exposed_exchanges_s
from meshwright.library.clusters import resolve_gpus
from meshwright.library.models import spec
from meshwright.schedules import PLAN_SCHEDULES, SCHEDULES, Kind, schedule_named
from meshwright.schedules.declaration import SharedKeys
from meshwright.schedules.named.avgpipe import AvgPipe
from meshwright.specs import PlanRow, Workload

MODEL = spec("llama-3.1-8b")
CLUSTER = resolve_gpus("8xH100")
WORKLOAD = Workload(seq_len=2048, global_batch=16)
TWO_CHUNKS = {n for n in SCHEDULES if any(x.field == "v" for x in SCHEDULES[n].problems(4, 8, 1))}


def row(schedule: str, **changes: object) -> PlanRow:
    plain = PlanRow(pp=4, dp=2, gbs=16, sharding="z1", schedule=schedule, vpp=2 if schedule in TWO_CHUNKS else 1)
    return replace(plain, **({"recompute": "full"} if schedule_named(schedule).recomputes_in_tasks else {}), **changes)


def estimate(schedule: str, **changes: object) -> StepEstimate:
    found = row(schedule, **changes)
    assert not row_problems(found, MODEL, WORKLOAD.seq_len, CLUSTER.devices)
    return estimate_plan(expand(found, MODEL, WORKLOAD.seq_len), MODEL, CLUSTER, WORKLOAD)


def memory(found: StepEstimate, kind: str) -> list[float]:
    return [dict(stage.memory_bytes)[kind] for stage in found.stages]


@pytest.mark.parametrize("name", PLAN_SCHEDULES)
def test_parts_sum_to_the_step_and_no_worker_works_longer_than_it(name: str) -> None:
    found = estimate(name)
    assert sum(dict(found.breakdown_s).values()) == pytest.approx(found.step_time_s, rel=1e-9)
    assert min(dict(found.breakdown_s).values()) >= 0
    assert max(stage.busy_s for stage in found.stages) <= found.step_time_s * (1 + 1e-12)


@pytest.mark.parametrize("name", PLAN_SCHEDULES)
def test_tables_hold_the_kinds_of_tasks_that_the_schedule_says(name: str) -> None:
    table = SCHEDULES[name].table(4, 8, 2 if name in TWO_CHUNKS else 1)
    assert {Kind(kind) for kind in np.unique(table.kind)} == SCHEDULES[name].kinds


def test_a_split_backward_takes_the_time_of_its_products_and_fills_the_bubble() -> None:
    whole, split = estimate("1f1b"), estimate("zb-h1")
    assert [stage.busy_s for stage in split.stages] == pytest.approx([stage.busy_s for stage in whole.stages])
    assert dict(split.breakdown_s)["bubble"] < dict(whole.breakdown_s)["bubble"]


def test_where_updates_are_validated_behind_the_step_workers_do_not_wait_for_the_first_micro_batch() -> None:
    waiting, going_on = estimate("zb-h2"), estimate("zb-h2-post")
    assert [stage.busy_s for stage in going_on.stages] == pytest.approx([stage.busy_s for stage in waiting.stages])
    assert [stage.peak_memory_bytes for stage in going_on.stages] == [s.peak_memory_bytes for s in waiting.stages]
    # Three forwards of a stage, each a third of a micro-batch's passes or less; what stays is of unequal stages.
    passes_s = max(stage.busy_s for stage in waiting.stages) / 8
    assert 0.4 * passes_s < waiting.step_time_s - going_on.step_time_s < 1.2 * passes_s
    assert dict(going_on.breakdown_s)["bubble"] < 0.5 * dict(waiting.breakdown_s)["bubble"]


def test_recomputed_activations_wait_for_their_weight_gradient() -> None:
    schedule = SCHEDULES["zb-h1"]
    now = live(schedule, 4, 8, 1)
    # The last worker runs F I W in turn but lags 3 weight gradients behind.
    assert max(int(made.max()) for made in now.made) == 4
    full, none = estimate("zb-h1", recompute="full"), estimate("zb-h1")
    assert memory(full, "activations")[0] < memory(none, "activations")[0]
    assert memory(full, "activations")[3] > memory(estimate("1f1b", recompute="full"), "activations")[3]


def test_with_nothing_recomputed_a_split_backward_keeps_what_in_flight_counts() -> None:
    for name in ("zb-h1", "zb-h2", "zb-v", "v-min", "dualpipev", "interleaved-zb"):
        schedule, v = SCHEDULES[name], 2 if name in TWO_CHUNKS else 1
        now = live(schedule, 4, 8, v)
        both = [int((kept + made).sum(axis=1).max()) for kept, made in zip(now.kept, now.made, strict=True)]
        assert both == [int(vectors.sum(axis=1).max()) for vectors in schedule.in_flight(4, 8, v)]


def test_varuna_makes_whole_stages_again_and_its_last_worker_none() -> None:
    found = estimate("varuna")
    plain = estimate("1f1b", recompute="full")
    assert found.stages[3].busy_s < plain.stages[3].busy_s
    assert found.stages[0].busy_s == pytest.approx(plain.stages[0].busy_s)
    again = [int(made.max()) for made in live(SCHEDULES["varuna"], 4, 8, 1).made]
    assert again == [1, 1, 1, 0]
    with pytest.raises(InputError, match="rc-full"):
        estimate_plan(expand(replace(row("varuna"), recompute="none"), MODEL, 2048), MODEL, CLUSTER, WORKLOAD)


@pytest.mark.parametrize("name", ["chimera", "mixpipe", "dualpipe"])
def test_both_directions_hold_two_stages_of_everything(name: str) -> None:
    one, two = estimate("1f1b"), estimate(name)
    for kind in ("weights", "gradients", "optimizer"):
        single = memory(one, kind)
        pairs = [single[r] + single[3 - r] for r in range(4)]
        assert memory(two, kind) == pytest.approx(pairs)
    assert dict(two.breakdown_s)["dp"] > dict(one.breakdown_s)["dp"]


def test_weight_versions_are_those_of_the_schedules() -> None:
    def versions(name: str) -> list[float]:
        return weight_versions(SCHEDULES[name], 4, 8, 1).tolist()

    assert versions("pipedream") == [4, 3, 2, 1]
    assert versions("pipedream-2bw") == [2, 2, 2, 2]
    assert versions("1f1b") == versions("chimera") == versions("bamboo") == [1, 1, 1, 1]
    # Each replica has its weights among the parameters; one reference model is there for all of them.
    assert weight_versions(AvgPipe(pipelines=4), 4, 8, 1).tolist() == [5 / 4] * 4
    single = memory(estimate("1f1b"), "weights")
    stashed = [number * size for number, size in zip(versions("pipedream"), single, strict=True)]
    assert memory(estimate("pipedream"), "weights") == pytest.approx(stashed)


def test_bamboo_holds_the_next_stage_and_runs_its_forward() -> None:
    plain, redundant = estimate("1f1b"), estimate("bamboo")
    held = memory(plain, "optimizer")
    assert memory(redundant, "optimizer") == pytest.approx([held[r] + held[(r + 1) % 4] for r in range(4)])
    assert all(b.busy_s > a.busy_s for a, b in zip(plain.stages, redundant.stages, strict=True))


def test_without_a_flush_a_step_is_the_work_of_the_busiest_worker() -> None:
    found = estimate("pipedream-2bw")
    parts = dict(found.breakdown_s)
    assert parts["bubble"] < 0.01 * found.step_time_s < dict(estimate("1f1b").breakdown_s)["bubble"]
    assert dict(estimate("pipedream").breakdown_s)["optimizer"] == pytest.approx(8 * parts["optimizer"])


def test_segments_cost_more_than_their_share_and_keep_less() -> None:
    whole, cut = estimate("1f1b"), estimate("seq1f1b")
    assert cut.stages[1].busy_s > whole.stages[1].busy_s
    assert memory(cut, "activations")[0] < memory(whole, "activations")[0]
    assert dict(cut.breakdown_s)["bubble"] < dict(whole.breakdown_s)["bubble"]


def test_slices_of_short_sequences_wait_for_the_attention_that_workers_share() -> None:
    def priced(name: str, seq_len: int) -> tuple[float, float]:
        plan = expand(row(name), MODEL, seq_len)
        found = estimate_plan(plan, MODEL, CLUSTER, replace(WORKLOAD, seq_len=seq_len))
        return found.step_time_s, dict(found.breakdown_s)["pp"]

    # Queries and keys cross as fast as attention reads them where sequences are long; short ones have little of it.
    short, long = priced("slimpipe", 1024), priced("slimpipe", 131072)
    assert short[1] > 2 * priced("seq1f1b-segments4", 1024)[1]
    assert long[1] == pytest.approx(priced("seq1f1b-segments4", 131072)[1], rel=1e-9)


def test_what_an_exchange_of_attention_leaves_exposed() -> None:
    costs = ItemCosts(**{field.name: np.ones((1, 1)) for field in fields(ItemCosts)})
    costs = replace(costs, query_bytes=np.array([[10.0]]), key_bytes=np.array([[4.0]]))
    forward_s, backward_s = exposed_exchanges_s(costs, SharedKeys(1.0, 1.5), np.array([0.5]))
    assert forward_s.item() == (10 + 1.5 * 4) * 0.5 - 1
    assert backward_s.item() == (3 * 10 + 2 * 1.5 * 4) * 0.5 - 1
    hidden = replace(costs, core_forward_s=np.array([[9.0]]), core_backward_s=np.zeros((1, 1)))
    assert [seconds.item() for seconds in exposed_exchanges_s(hidden, SharedKeys(1.0, 1.5), np.array([0.5]))] == [0, 0]


def test_bpipe_parks_activations_with_its_partner() -> None:
    plain, parked = memory(estimate("1f1b"), "activations"), memory(estimate("bpipe"), "activations")
    assert parked[0] == pytest.approx(plain[0] * 3 / 4)
    assert parked[3] > plain[3]
    assert parked[1:3] == pytest.approx(plain[1:3])


@pytest.mark.parametrize("name", sorted({*PLAN_SCHEDULES} - {"varuna", "mario"}))
def test_a_stage_says_how_many_activations_lie_on_it(name: str) -> None:
    """Guests of a partner too; the two that make whole stages again have the one being made beside them."""
    said = [int(stage.peak_moment.removeprefix("backward with ").split()[0]) for stage in estimate(name).stages]
    assert said == list(SCHEDULES[name].peak_activations(4, 8, 2 if name in TWO_CHUNKS else 1))


def test_paged_stages_wait_on_the_host_of_one_rank() -> None:
    problems = row_problems(row("mobius"), MODEL, 2048, 8)
    assert [problem.field for problem in problems] == ["offload", "dp"]
    assert "paged from host memory" in problems[0].why
    with pytest.raises(InputError, match="mobius"):
        estimate_plan(expand(row("mobius"), MODEL, 2048), MODEL, CLUSTER, WORKLOAD)


def test_stages_must_stand_where_the_schedule_runs_them() -> None:
    plan = expand(row("zb-v"), MODEL, 2048)
    pipeline = plan.pipelines[0]
    looped = replace(pipeline, schedule=replace(pipeline.schedule, name="interleaved"))
    with pytest.raises(UnsupportedError, match="virtual stages"):
        estimate_plan(replace(plan, pipelines=(looped,)), MODEL, CLUSTER, WORKLOAD)
