"""Plans of every method: saved, read, and run again as they were decided; what XLA made of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from meshwright.compiler.method_plan import MethodPlan
from meshwright.compiler.methods.data import DataParallel, Zero2Parallel, Zero3Parallel
from meshwright.compiler.methods.decided import FromPlan
from meshwright.compiler.methods.pipeshard import LocalPipeline, PipeshardParallel
from meshwright.compiler.methods.shard import ShardParallel
from meshwright.compiler.stages.hosts import Hosts
from meshwright.errors import InputError
from meshwright.runtime.parallelize import parallelize
from tests.compiler.models import initial, step, tokens

SLOW = Hosts(
    hosts=4,
    devices_per_host=2,
    flop_per_s=1e7,
    inside_bytes_per_s=1e9,
    between_bytes_per_s=1e9,
    inside_latency_s=1e-8,
    between_latency_s=1e-4,
)
METHODS = [
    DataParallel(num_micro_batches=2),
    Zero2Parallel(),
    Zero3Parallel(),
    ShardParallel(hosts=replace(SLOW, hosts=1, devices_per_host=8), num_micro_batches=2),
    PipeshardParallel(num_stages=2, num_micro_batches=4, zero=1),
    PipeshardParallel(num_stages=2, num_micro_batches=4, schedule="interleaved", chunks=2),
    PipeshardParallel(num_stages="auto", num_micro_batches=4, hosts=replace(SLOW, between_bytes_per_s=1e6)),
    LocalPipeline(num_stages=2, num_micro_batches=2),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda one: type(one).__name__)
def test_a_plan_is_replayed_as_it_was_decided(method: Any, tmp_path: Path) -> None:
    shapes = jax.eval_shape(initial), jax.eval_shape(lambda: tokens(16))
    compiled = parallelize(step, method=method).lower(*shapes)
    beside_lists = method.num_micro_batches > 2
    (compiled if beside_lists else compiled.plan).save(tmp_path / "plan.json")
    replayed = FromPlan.load(tmp_path / "plan.json")
    again = parallelize(step, method=replayed).lower(*shapes)
    assert again.plan.choice == compiled.plan.choice
    assert again.plan.stage_ends == compiled.plan.stage_ends
    assert str(again.program) == str(compiled.program)
    assert [one.spec for one in again.program.buffers] == [one.spec for one in compiled.program.buffers]
    assert [one.devices.tolist() for one in again.runtime.meshes] == [
        one.devices.tolist() for one in compiled.runtime.meshes
    ]
    assert str(replayed.plan).startswith(type(method).__name__)


def test_the_saved_stages_are_what_is_cut(tmp_path: Path) -> None:
    """Not the cut that the compiler would choose again."""
    shapes = jax.eval_shape(initial), jax.eval_shape(lambda: tokens(16))
    compiled = parallelize(step, method=PipeshardParallel(num_stages=2, num_micro_batches=2)).lower(*shapes)
    first, last = compiled.plan.stage_ends
    moved = replace(compiled.plan, stage_ends=(first - 4, last))
    again = parallelize(step, method=FromPlan(plan=moved)).lower(*shapes)
    assert again.plan == moved
    assert again.lines() != compiled.lines()


def test_a_step_that_runs_whole_has_a_plan_too(tmp_path: Path) -> None:
    run = parallelize(lambda state, batch: (state, jnp.tanh(batch @ state)), method=DataParallel())
    compiled = run.lower(jnp.ones((4, 4)), jnp.ones((16, 4)))
    assert compiled.plan.whole
    compiled.plan.save(tmp_path / "plan.json")
    again = parallelize(run.form.fun, method=FromPlan.load(tmp_path / "plan.json"))
    assert again.lower(jnp.ones((4, 4)), jnp.ones((16, 4))).plan == compiled.plan
    with pytest.raises(InputError, match="the plan is of another step"):
        again.lower(jnp.ones((4, 4)), jnp.ones((8, 4)))


def test_another_step_and_too_few_devices_are_refused() -> None:
    shapes = jax.eval_shape(initial), jax.eval_shape(lambda: tokens(16))
    for method in (DataParallel(), ShardParallel(hosts=replace(SLOW, hosts=1, devices_per_host=8))):
        plan = parallelize(step, method=method).lower(*shapes).plan
        with pytest.raises(InputError, match="the plan is of another step"):
            parallelize(step, method=FromPlan(plan=plan)).lower(shapes[0], jax.eval_shape(lambda: tokens(8)))
        with pytest.raises(InputError, match="the plan is for 8 devices, 2 are here"):
            parallelize(step, method=FromPlan(plan=plan, devices=jax.devices()[:2])).lower(*shapes)
    with pytest.raises(InputError, match="the plan lacks choice, first_devices"):
        MethodPlan.from_json('{"schema": "meshwright.method_plan/1", "method": "DataParallel"}')


def test_the_text_of_every_executable_is_there() -> None:
    shapes = jax.eval_shape(initial), jax.eval_shape(lambda: tokens(16))
    compiled = parallelize(step, method=PipeshardParallel(num_stages=2, num_micro_batches=2)).lower(*shapes)
    texts = compiled.hlo()
    assert set(texts) >= set(compiled.program.executables)
    assert all("ENTRY" in text and "num_partitions=4" in text for text in texts.values())
