"""Whole plans: from shapes alone, never slower than stages someone gives, saved and read again."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from meshwright.compiler.stages.hosts import Hosts
from meshwright.compiler.stages.islands import Islands
from meshwright.compiler.stages.plan import StagesPlan
from meshwright.compiler.stages.search import StageSpace, plan_step, price_stages, simulated_s
from meshwright.errors import InfeasibleError, InputError
from meshwright.specs.cluster import LinkSpec
from tests.compiler.models import initial, step, tokens

HOSTS = Hosts(
    hosts=2,
    devices_per_host=4,
    flop_per_s=1e8,
    memory_bytes=1e6,
    inside_bytes_per_s=1e9,
    between_bytes_per_s=1e8,
    inside_latency_s=1e-7,
    between_latency_s=1e-6,
)


@pytest.fixture(scope="module")
def shapes() -> Any:
    return jax.eval_shape(initial), jax.eval_shape(lambda: tokens(16))


@pytest.fixture(scope="module")
def plan(shapes: Any) -> StagesPlan:
    return plan_step(step, shapes, HOSTS)


def test_all_layers_and_all_devices_are_used_once(plan: StagesPlan) -> None:
    layers = [layer for stage in plan.stages for layer in range(stage.layers[0], stage.layers[1] + 1)]
    assert layers == list(range(len(plan.layer_ends)))
    devices = [d for stage in plan.stages for d in range(stage.first_device, stage.first_device + stage.devices)]
    assert devices == list(range(8))
    assert plan.step_s == simulated_s(plan.stages, plan.micro_batches, HOSTS)
    assert all(stage.peak_bytes <= 1e6 for stage in plan.stages)
    assert [stage.in_flight for stage in plan.stages] == [
        min(len(plan.stages) - n, plan.micro_batches) for n in range(len(plan.stages))
    ]


@pytest.mark.parametrize("stages", [[(3, 4), (3, 4)], [(2, 2), (1, 2), (3, (2, 2))], [(6, (2, 4))]])
def test_no_given_stages_are_quicker(shapes: Any, plan: StagesPlan, stages: Any) -> None:
    theirs = price_stages(step, shapes, HOSTS, stages, space=StageSpace(micro_batches=(1, 2, 4, 8, 16)))
    assert [stage.devices for stage in theirs.stages] == [4, 4] if len(stages) == 2 else True
    assert plan.step_s <= theirs.step_s * (1 + 1e-9)


def test_islands_share_the_layers_by_their_speed_and_memory(shapes: Any) -> None:
    """Twice: with the quick island first and last, as a pipeline visits them in any order."""
    quick = replace(HOSTS, name="quick", hosts=1, flop_per_s=4e8)
    slow = replace(HOSTS, name="slow", hosts=1, flop_per_s=1e8)
    link = LinkSpec(between=("quick", "slow"), bandwidth_bytes_per_s=1e8, latency_s=1e-6)
    plans = [
        plan_step(step, shapes, Islands(groups=groups, links=(link,)), space=StageSpace(micro_batches=(4, 8)))
        for groups in ((quick, slow), (slow, quick))
    ]
    assert plans[0].step_s == pytest.approx(plans[1].step_s)
    for plan in plans:
        assert plan.step_s == simulated_s(plan.stages, plan.micro_batches, plan.hosts)
        used = sorted(d for stage in plan.stages for d in range(stage.first_device, stage.first_device + stage.devices))
        assert used == list(range(8))
        flops = {"quick": 0, "slow": 0}
        for stage in plan.stages:
            flops[plan.group_of(stage).name] += stage.layers[1] - stage.layers[0] + 1
        assert flops["quick"] > flops["slow"]
    assert StagesPlan.from_json(plans[0].to_json()) == plans[0]
    small = replace(slow, memory_bytes=100.0)
    with pytest.raises(InfeasibleError, match="nothing fits into 100 bytes a device: stage"):
        plan_step(step, shapes, Islands(groups=(quick, small)), space=StageSpace(micro_batches=(8,)))


def test_a_batch_that_splits_into_nothing_has_a_plan() -> None:
    shapes = jax.eval_shape(initial), jax.eval_shape(lambda: tokens(5))
    assert plan_step(step, shapes, HOSTS).micro_batches == 1


def test_plans_are_saved_and_read_again(plan: StagesPlan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    assert StagesPlan.load(tmp_path / "plan.json") == plan
    assert str(plan).startswith(f"{plan.step_s:.4g} s a step: {len(plan.stages)} stage")
    with pytest.raises(InputError, match="there is no file"):
        StagesPlan.load(tmp_path / "none.json")
    with pytest.raises(InputError, match="not JSON"):
        StagesPlan.from_json("stages")
    with pytest.raises(InputError, match="a plan of version 0"):
        StagesPlan.from_json('{"version": 0}')
    with pytest.raises(InputError, match="lacks hosts"):
        StagesPlan.from_json(plan.to_json().replace('"hosts"', '"host"'))


def missing(raised: pytest.ExceptionInfo[InfeasibleError]) -> tuple[float, float]:
    """What is needed, and how much more that is."""
    found = re.search(r"at least (\S+)(?: on every device)?, (\S+) more than there is", str(raised.value))
    assert found is not None
    return float(found[1]), float(found[2])


def test_what_does_not_fit_says_which_stage_and_how_much_is_missing(shapes: Any) -> None:
    with pytest.raises(InfeasibleError, match=r"nothing fits into 100 bytes a device: state and kept") as raised:
        plan_step(step, shapes, replace(HOSTS, memory_bytes=100.0))
    needed, more = missing(raised)
    assert more == pytest.approx(needed - 100.0, rel=1e-3)
    space = StageSpace(micro_batches=(16,))
    with pytest.raises(InfeasibleError, match=r"stage \d \(layers \d-\d on \d devices?, \d in flight\)") as raised:
        plan_step(step, shapes, replace(HOSTS, memory_bytes=5000.0), space=space)
    needed, more = missing(raised)
    assert more == pytest.approx(needed - 5000.0, rel=2e-2)
    assert plan_step(step, shapes, replace(HOSTS, memory_bytes=1.02 * needed), space=space).stages
    with pytest.raises(InfeasibleError):
        plan_step(step, shapes, replace(HOSTS, memory_bytes=0.97 * needed), space=space)


def test_given_stages_that_do_not_fit_are_named(shapes: Any) -> None:
    tight = replace(HOSTS, memory_bytes=4000.0)
    with pytest.raises(InfeasibleError, match=r"stage 0 \(layers 0-4 on 4 devices, 2 in flight\) needs at least"):
        price_stages(step, shapes, tight, [(5, 4), (1, 4)], space=StageSpace(micro_batches=(4,), recompute=(False,)))


def test_less_memory_takes_more_time(shapes: Any) -> None:
    space = StageSpace(micro_batches=(4,))
    free = plan_step(step, shapes, replace(HOSTS, memory_bytes=None), space=space)
    peak = max(stage.peak_bytes for stage in free.stages)
    tight = plan_step(step, shapes, replace(HOSTS, memory_bytes=0.8 * peak), space=space)
    assert max(stage.peak_bytes for stage in tight.stages) <= 0.8 * peak
    assert tight.step_s >= free.step_s


def test_the_start_of_kernels_keeps_small_batches_whole(shapes: Any) -> None:
    """Without it, 16 micro-batches of a single stage would cost what one does."""
    quick = replace(HOSTS, hosts=1, flop_per_s=1e14, memory_bytes=None)
    found = plan_step(step, shapes, replace(quick, launch_s=1e-5), space=StageSpace(most_stages=1))
    assert found.micro_batches == 1
    assert found.step_s > plan_step(step, shapes, quick, space=StageSpace(most_stages=1)).step_s + 1e-4


def test_where_memory_binds_nowhere_the_answer_is_that_of_all_prices_of_memory(shapes: Any) -> None:
    ample = plan_step(step, shapes, replace(HOSTS, memory_bytes=1e12))
    assert not ample.recompute
    scarce = replace(HOSTS, memory_bytes=1.01 * max(stage.peak_bytes for stage in ample.stages))
    assert plan_step(step, shapes, scarce).step_s == pytest.approx(ample.step_s, rel=1e-9)
