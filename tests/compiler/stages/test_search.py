"""Whole plans: from shapes alone, never slower than stages someone gives, saved and read again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from meshwright.compiler.stages.hosts import Hosts
from meshwright.compiler.stages.plan import StagesPlan
from meshwright.compiler.stages.search import Space, plan_step, price_stages, simulated_s
from meshwright.errors import InfeasibleError, InputError
from tests.compiler.models import initial, step, tokens

HOSTS = Hosts(hosts=2, devices_per_host=4, flop_per_s=1e8, memory_bytes=1e6, inside_bytes_per_s=1e9,
              between_bytes_per_s=1e8, inside_latency_s=1e-7, between_latency_s=1e-6)  # fmt: skip


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
    theirs = price_stages(step, shapes, HOSTS, stages, space=Space(micro_batches=(1, 2, 4, 8, 16)))
    assert [stage.devices for stage in theirs.stages] == [4, 4] if len(stages) == 2 else True
    assert plan.step_s <= theirs.step_s * (1 + 1e-9)


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


def test_what_does_not_fit_says_what_is_missing(shapes: Any) -> None:
    with pytest.raises(InfeasibleError, match=r"nothing fits into 100 bytes a device: state and kept .* least \d"):
        plan_step(step, shapes, replace(HOSTS, memory_bytes=100.0))
    with pytest.raises(InfeasibleError, match=r"nothing fits into 2000 bytes a device: .* \d"):
        plan_step(step, shapes, replace(HOSTS, memory_bytes=2000.0), space=Space(micro_batches=(16,)))


def test_less_memory_takes_more_time(shapes: Any) -> None:
    space = Space(micro_batches=(4,))
    free = plan_step(step, shapes, replace(HOSTS, memory_bytes=None), space=space)
    peak = max(stage.peak_bytes for stage in free.stages)
    tight = plan_step(step, shapes, replace(HOSTS, memory_bytes=0.8 * peak), space=space)
    assert max(stage.peak_bytes for stage in tight.stages) <= 0.8 * peak
    assert tight.step_s >= free.step_s
