"""The compiler behind the seam: what it says of a slice is what the compiler says of a step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from meshwright import plan
from meshwright.compiler.stages.hosts import Hosts
from meshwright.compiler.stages.search import StageSpace, price_stages
from meshwright.fields.job import JobFields
from meshwright.planning.compose.sources.parallelizers.guard import Guarded
from meshwright.planning.compose.sources.parallelizers.registry import parallelizers_named
from meshwright.planning.question.job_inputs import JobInputs, job_inputs
from meshwright.specs.cluster import Island
from meshwright.specs.seam import ModelSlice, PartialPlan
from meshwright.zoo.decoder import Decoder
from meshwright.zoo.intra_operator import IntraOperator
from meshwright.zoo.tiny import scaled_model
from meshwright.zoo.training import Adam, train_step

WAVE, DEVICES = 8, 4


@pytest.fixture(scope="module")
def inputs() -> JobInputs:
    found = job_inputs(JobFields(model="llama-2-7b", gpus="4xA100-80", seq_len=512, global_batch=64))
    small = scaled_model(found.model, layers=4, hidden=1024, vocab=4096)
    return job_inputs(JobFields(model=small, gpus="4xA100-80", seq_len=512, global_batch=64))


@pytest.fixture(scope="module")
def compiler() -> Guarded:
    (made,) = parallelizers_named("compiler")
    assert isinstance(made, IntraOperator)
    return Guarded(inner=made)


def ask(compiler: Guarded, inputs: JobInputs, layers: int, **edges: bool) -> list[PartialPlan]:
    part = ModelSlice(model=inputs.model, layers=((inputs.model.kinds()[0], layers),), **edges)
    island = Island(group=inputs.cluster.groups[0], first_device=0, devices=DEVICES)
    return compiler.plan(part, island, inputs.workload, WAVE)


def test_a_whole_model_takes_what_the_compiler_says_of_its_step(compiler: Guarded, inputs: JobInputs) -> None:
    ours = ask(compiler, inputs, 4, embedding=True, head=True)
    hosts = Hosts.of(inputs.cluster.groups[0], inputs.workload)
    model, optimizer = Decoder(spec=inputs.model, seq_len=512, compute="bfloat16"), Adam()
    weights = jax.eval_shape(model.init, jax.random.key(0))
    state: Any = {
        "weights": weights,
        "moments": jax.eval_shape(optimizer.init, weights),
        "step": jax.ShapeDtypeStruct((), jnp.int32),
    }
    batch = {"tokens": jax.ShapeDtypeStruct((64, 513), jnp.int32), "sample": jax.ShapeDtypeStruct((64,), jnp.int32)}
    space = StageSpace(micro_batches=(64 // WAVE,), recompute=(False,))
    theirs = price_stages(train_step(model, optimizer), (state, batch), hosts, [(6, DEVICES)], space=space).stages[0]
    whole_s = theirs.forward_s + theirs.backward_s
    best = min(
        (one for one in ours if one.strategies[0].recompute.kind == "none"),
        key=lambda one: one.forward_s + one.backward_s + one.sync_s / 8,
    )
    # The stream may not change its placement between layers here.
    assert whole_s * (1 - 1e-9) <= best.forward_s + best.backward_s + best.sync_s / 8 <= 1.02 * whole_s


def test_solutions_are_read_as_degrees_of_all_devices(compiler: Guarded, inputs: JobInputs) -> None:
    found = ask(compiler, inputs, 2)
    assert not compiler.skips
    degrees = {(plan.strategies[0].tp, plan.strategies[0].cp, plan.strategies[0].dp) for plan in found}
    assert {(1, 1, 4), (4, 1, 1)} <= degrees
    assert {plan.strategies[0].recompute.kind for plan in found} == {"none", "full"}
    for one in found:
        if one.strategies[0].dp > 1:
            assert one.sync_s > 0
        if one.strategies[0].recompute.kind == "full":
            kept = min(p.backward_s for p in found if p.strategies[0].recompute.kind == "none")
            assert one.backward_s > kept
            assert one.activation_bytes < max(p.activation_bytes for p in found)


def test_layers_add_up(compiler: Guarded, inputs: JobInputs) -> None:
    one, two, first = ask(compiler, inputs, 1), ask(compiler, inputs, 2), ask(compiler, inputs, 1, embedding=True)
    for single, double, with_embedding in zip(one, two, first, strict=True):
        assert double.forward_s == pytest.approx(2 * single.forward_s)
        assert double.activation_bytes == pytest.approx(2 * single.activation_bytes)
        assert with_embedding.state_bytes > single.state_bytes


def test_experts_are_a_reported_skip(compiler: Guarded) -> None:
    found = job_inputs(JobFields(model="mixtral-8x7b", gpus="8xA100-80", seq_len=512, global_batch=64))
    guarded = Guarded(inner=IntraOperator())
    assert ask(guarded, found, 1) == []
    assert "it plans equal dense layers" in guarded.skips[0].reason


def test_it_plans_from_plan(inputs: JobInputs) -> None:
    found = plan(inputs.model, gpus="2xA100-80", seq_len=512, global_batch=16, parallelizer="compiler", top=1)
    assert found.composition is not None
    assert {one.parallelizer for one in found.composition.slices} == {"compiler"}
    assert found.best.estimate.fits == "yes"
