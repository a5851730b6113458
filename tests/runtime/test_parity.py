"""Every model, mesh and schedule ends where one device ends: losses, gradients of the first step, weights of the last.

`make test-runs` runs a cover in which every two levels of what a case is made of meet; the whole product is marked
slow, and `make test-full` runs it, ten steps each. In 64 bits 1e-9 leaves no room for a slip.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import accumulate, product
from math import prod
from typing import Any

import jax
import pytest

from meshwright.compiler.methods.decided import FromPlan
from meshwright.compiler.stages.hosts import Hosts
from meshwright.compiler.stages.plan import StagePlan
from meshwright.compiler.stages.search import StageSpace, plan_step
from meshwright.runtime.devices import jax_precision
from meshwright.runtime.parallelize import parallelize
from meshwright.runtime.parity import StepsOutcome, outcome, parity_of, run_alone, run_parallel
from meshwright.runtime.training.run import Training
from meshwright.specs.row import PlanRow
from meshwright.zoo.training import Adam, train_step
from tests.runtime.parity_cases import MICRO_BATCHES, MODELS, SAMPLES, Case, cover, every_case, training

# Recomputation of a whole model stands in one stage, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:stage . of . computes")


@cache
def start(model: str, layers: int, dtype: str) -> Any:
    """The state before the first step."""
    return training(model, PlanRow(dp=1, gbs=SAMPLES), layers).initial()


@cache
def alone(model: str, layers: int, steps: int, dtype: str) -> StepsOutcome:
    """One device is the same for all plans of as many micro-batches."""
    one = training(model, PlanRow(dp=1, mbs=SAMPLES // MICRO_BATCHES, gbs=SAMPLES), layers)
    return run_alone(one, steps, start(model, layers, dtype))


def expected_of(own: Training, model: str, layers: int, steps: int, dtype: str) -> StepsOutcome:
    """The same on one device; where ranks of a plan give places of experts to their own tokens, as that plan does."""
    if getattr(own.plain_model(), "routed_on", None) is None:
        return alone(model, layers, steps, dtype)
    return run_alone(own, steps, start(model, layers, dtype))


def check(there: StepsOutcome, expected: StepsOutcome, model: str, dtype: str) -> None:
    found = parity_of(there, expected, dtype)
    worst = sorted(found.compared, key=lambda one: -max(one.gradient, one.weight))[:3]
    assert found.holds, (found.loss, found.routed_otherwise, worst)
    assert (found.routed > 0) == (model == "moe-tiny")
    # Softmax does not see the bias of a key; nothing else is left out.
    excluded = {one.tensor.rpartition(".")[2] for one in found.tensors if one.zero_gradient}
    assert excluded <= {"k_bias"}


def check_case(case: Case, layers: int, steps: int) -> None:
    with jax_precision(case.dtype):
        own = training(case.model, case.row, layers)
        there = run_parallel(own, jax.devices(), steps, start(case.model, layers, case.dtype))
        check(there, expected_of(own, case.model, layers, steps, case.dtype), case.model, case.dtype)


@pytest.mark.parametrize("case", cover(), ids=lambda case: case.name)
def test_a_cover_of_all_pairs_ends_where_one_device_ends(case: Case) -> None:
    check_case(case, layers=1, steps=2)


@pytest.mark.slow
@pytest.mark.parametrize("case", every_case(), ids=lambda case: case.name)
def test_all_cases_end_where_one_device_ends(case: Case) -> None:
    check_case(case, layers=2, steps=10)


def test_ten_steps_in_32_bits() -> None:
    row = PlanRow(pp=2, dp=4, mbs=2, gbs=SAMPLES, sharding="z1")
    check_case(Case(model="gpt-tiny", ranks="data", row=row, dtype="fp32"), layers=1, steps=10)


@pytest.mark.parametrize("modules", [("mlp",), ("core_attn", "layernorm", "mlp")])
@pytest.mark.parametrize("tp", [1, 2])
def test_context_ranks_sum_what_is_computed_again_once(modules: tuple[str, ...], tp: int) -> None:
    """A checkpoint stands between the sum over context ranks and the gradient."""
    row = PlanRow(tp=tp, dp=2, cp=(("p2p", 2),), mbs=4, gbs=SAMPLES, recompute="sel", recompute_modules=modules)
    check_case(
        Case(model="gpt-tiny", ranks="context", row=replace(row, sharding="z1"), dtype="fp64"), layers=1, steps=2
    )


def test_context_and_expert_ranks_in_workers_of_their_own() -> None:
    row = PlanRow(pp=2, dp=2, cp=(("p2p", 2),), ep=4, mbs=4, gbs=SAMPLES, sharding="z2")
    own = replace(training("moe-tiny", row, 1), backend="processes", timeout_s=120.0)
    with jax_precision("fp32"):
        there = run_parallel(own, jax.devices(), 2, start("moe-tiny", 1, "fp32"))
        check(there, expected_of(own, "moe-tiny", 1, 2, "fp32"), "moe-tiny", "fp32")


# ---- submeshes of unequal size

LOOSE = Hosts(
    hosts=1,
    devices_per_host=8,
    flop_per_s=1e9,
    inside_bytes_per_s=1e9,
    between_bytes_per_s=1e9,
    inside_latency_s=1e-8,
    between_latency_s=1e-8,
)
SUBMESHES = (((4,), (2,), (2,)), ((1,), (2, 2), (2,)), ((2, 2), (4,)))
UNEQUAL = [
    pytest.param(
        *one,
        marks=[]
        if one in (("gpt-tiny", SUBMESHES[1], "fp64"), ("moe-tiny", SUBMESHES[0], "fp32"))
        else pytest.mark.slow,
    )
    for one in product(MODELS, SUBMESHES, ("fp64", "fp32"))
]


@pytest.mark.parametrize(("model", "submeshes", "dtype"), UNEQUAL)
def test_submeshes_of_unequal_size_end_where_one_device_ends(
    model: str, submeshes: tuple[tuple[int, ...], ...], dtype: str
) -> None:
    steps = 2
    with jax_precision(dtype):
        own = training(model, PlanRow(dp=1, mbs=SAMPLES // MICRO_BATCHES, gbs=SAMPLES), 1)
        state = start(model, 1, dtype)
        step = train_step(own.model(), Adam(), gradients_too=True)
        space = StageSpace(micro_batches=(MICRO_BATCHES,), recompute=(False,))
        plan = plan_step(step, (state, own.batch(0)), LOOSE, space=space)
        layers, count = len(plan.layer_ends), len(submeshes)
        ends = [layers * (place + 1) // count for place in range(count)]
        devices = [0, *accumulate(map(prod, submeshes))]
        stages = tuple(
            StagePlan(
                layers=(first, end - 1),
                first_device=device,
                mesh_shape=shape,
                forward_s=1.0,
                backward_s=2.0,
                sending_s=0.0,
                state_bytes=0.0,
                kept_bytes=0.0,
                transient_bytes=0.0,
                in_flight=count - place,
            )
            for place, (first, end, device, shape) in enumerate(
                zip([0, *ends[:-1]], ends, devices, submeshes, strict=False)
            )
        )
        run = parallelize(step, method=FromPlan(plan=replace(plan, stages=stages)), loss="mean")
        assert [mesh.size for mesh in run.lower(state, own.batch(0)).runtime.meshes] == [*map(prod, submeshes)]
        check(outcome(own, run, steps, state), alone(model, 1, steps, dtype), model, dtype)


# ---- what ranks hold


def held(one: Training, name: str) -> list[float]:
    """Share of a weight, and of its moments, that the first device holds."""
    state, _ = one.step(jax.devices())(one.initial(), one.batch(0))
    trees = [state["weights"], state["moments"]["mean"], state["moments"]["square"]]
    leaves = [
        leaf
        for tree in trees
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        if jax.tree_util.keystr(path, simple=True, separator=".") == name
    ]
    return [leaf.addressable_shards[0].data.size / leaf.size for leaf in leaves]


@pytest.mark.parametrize(
    ("model", "row", "name", "shares"),
    [
        ("mlp-tiny", PlanRow(tp=4, dp=2, mbs=4, gbs=SAMPLES), "0.weight", [1 / 4, 1 / 4, 1 / 4]),
        ("moe-tiny", PlanRow(dp=8, ep=4, sharding="z1", gbs=SAMPLES), "layers.0.experts.up", [1 / 4, 1 / 8, 1 / 8]),
        ("mlp-tiny", PlanRow(dp=8, sharding="hsdp", shard_group=4, gbs=SAMPLES), "1.weight", [1 / 4, 1 / 4, 1 / 4]),
    ],
)
def test_ranks_hold_parts_of_weights_and_moments(model: str, row: PlanRow, name: str, shares: list[float]) -> None:
    assert held(training(model, row, 1), name) == shares
