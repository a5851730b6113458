"""Every model, mesh and schedule ends where one device ends: losses, gradients of the first step, weights of the last.

The quick cover has every model with 1, 2, 4 and 8 stages, the perceptron also with 3, every schedule, and every
sharding of states with every number of stages; the whole product is marked slow. All but one case count in 64 bits,
where 1e-9 leaves no room for a slip.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import jax
import pytest

from meshwright.runtime.devices import precision
from meshwright.runtime.parity import Outcome, compare, run_alone, run_parallel
from meshwright.runtime.training_run import Training
from meshwright.schedules import SCHEDULES, schedule_named
from meshwright.specs.row import PlanRow
from meshwright.zoo.tiny import TINY, scaled

MODELS = ("mlp-tiny", *TINY)
MESHES = ((1, 8), (2, 4), (3, 2), (4, 2), (8, 1))
"""Stages, and data ranks of each."""
MICRO_BATCHES, SAMPLES, LENGTH = 8, 64, 4
NOT_COMPILED = ("seq1f1b", "varuna", "bamboo")
"""With sequence segments, recomputation tasks and redundant forwards."""
RUNNING = tuple(name for name in SCHEDULES if schedule_named(name).exact_semantics and name not in NOT_COMPILED)
SHARDINGS = ("z0", "z1", "z2", "z3")


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Stages that several schedules run alike are compiled once."""
    changed = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled")),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in changed}
    for name, value in changed.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def training(model: str, row: PlanRow, layers: int) -> Training:
    """Few layers, cut inside them where there are more stages; the perceptron has eight."""
    spec = scaled(TINY[model], layers=layers, hidden=16, vocab=24) if model in TINY else None
    return Training(spec=spec, row=row, stage_layers=(layers if spec else 8,), seq_len=LENGTH, hidden=8)


@cache
def alone(model: str, layers: int, steps: int, dtype: str) -> Outcome:
    """One device is the same for all plans of as many micro-batches."""
    return run_alone(training(model, PlanRow(dp=1, mbs=SAMPLES // MICRO_BATCHES, gbs=SAMPLES), layers), steps)


def check(model: str, row: PlanRow, layers: int = 1, steps: int = 2, dtype: str = "fp64") -> None:
    with precision(dtype):
        there = run_parallel(training(model, row, layers), jax.devices(), steps)
        found = compare(there, alone(model, layers, steps, dtype), dtype)
    worst = sorted(found.compared, key=lambda one: -max(one.gradient, one.weight))[:3]
    assert found.holds, (found.loss, worst)
    excluded = {one.tensor.rpartition(".")[2] for one in found.tensors if one.zero_gradient}
    assert excluded <= {"k_bias"}


def row(mesh: tuple[int, int], schedule: str, sharding: str) -> PlanRow:
    pp, dp = mesh
    chunked = any(problem.field == "v" for problem in schedule_named(schedule).problems(max(pp, 2), MICRO_BATCHES, 1))
    return PlanRow(pp=pp, dp=dp, vpp=2 if chunked else 1, mbs=SAMPLES // MICRO_BATCHES // dp, gbs=SAMPLES,
                   schedule=schedule, sharding=sharding)  # fmt: skip


def product_of_all() -> list[tuple[str, PlanRow]]:
    """Models x meshes x schedules that fit, the sharding of states taking turns."""
    found = []
    for model, mesh, schedule in product(MODELS, MESHES, RUNNING):
        if mesh[0] == 1 and schedule != "1f1b":
            continue
        one = row(mesh, schedule, SHARDINGS[len(found) % 4])
        if mesh[0] == 1 or not schedule_named(schedule).problems(one.pp, MICRO_BATCHES, one.vpp):
            found.append((model, one))
    return found


def cover(cases: list[tuple[str, PlanRow]]) -> list[tuple[str, PlanRow]]:
    """Of all cases, few that have every pair of model and mesh and of mesh and sharding, and every schedule."""

    def pairs(model: str, one: PlanRow) -> set[tuple[Any, ...]]:
        small = model == "mlp-tiny"
        # Three stages, and two chunks on each of eight, are for the perceptron: they take long to compile.
        if not small and (one.pp == 3 or one.pp * one.vpp > 8):
            return set()
        shardings = set() if one.pp == 3 else {(one.pp, one.sharding)}
        return {(model, one.pp), (one.schedule,), *shardings}

    missing = set().union(*(pairs(*case) for case in cases))
    chosen = []
    while missing:
        best = max(cases, key=lambda case: len(pairs(*case) & missing))
        chosen.append(best)
        missing -= pairs(*best)
    return chosen


ALL = product_of_all()
QUICK = cover(ALL)


def name_of(case: Any) -> str:
    return case.format() if isinstance(case, PlanRow) else str(case)


@pytest.mark.parametrize(("model", "plan"), QUICK, ids=name_of)
def test_a_cover_of_all_cases_ends_where_one_device_ends(model: str, plan: PlanRow) -> None:
    check(model, plan)


TENSOR = [
    ("mlp-tiny", PlanRow(pp=2, tp=2, dp=2, mbs=4, gbs=SAMPLES, sharding="z3")),
    ("gpt-tiny", PlanRow(pp=1, tp=4, dp=2, mbs=4, gbs=SAMPLES, sharding="z1")),
    pytest.param("gpt-tiny", PlanRow(pp=2, tp=4, dp=1, mbs=8, gbs=SAMPLES), marks=pytest.mark.slow),
    pytest.param("llama-tiny", PlanRow(pp=2, tp=2, dp=2, mbs=4, gbs=SAMPLES, sharding="z2"), marks=pytest.mark.slow),
    pytest.param("moe-tiny", PlanRow(pp=2, tp=2, dp=2, mbs=4, gbs=SAMPLES, sharding="z3"), marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("model", "plan"), TENSOR, ids=name_of)
def test_split_weights_end_where_one_device_ends(model: str, plan: PlanRow) -> None:
    check(model, plan)


def test_tensor_ranks_hold_parts_of_weights_and_moments() -> None:
    one = training("mlp-tiny", PlanRow(pp=1, tp=4, dp=2, mbs=4, gbs=SAMPLES), 1)
    state, _ = one.step(jax.devices())(one.initial(), one.batch(0))
    for leaf in jax.tree.leaves([state["weights"][0], state["moments"]["mean"][0], state["moments"]["square"][0]]):
        assert leaf.addressable_shards[0].data.size * 4 == leaf.size


@pytest.mark.slow
@pytest.mark.parametrize(("model", "plan"), ALL, ids=name_of)
def test_all_cases_end_where_one_device_ends(model: str, plan: PlanRow) -> None:
    check(model, plan, layers=2, steps=10)


IN_32_BITS = [pytest.param(model, marks=[] if model == "gpt-tiny" else pytest.mark.slow) for model in MODELS]


@pytest.mark.parametrize("model", IN_32_BITS)
def test_ten_steps_in_32_bits(model: str) -> None:
    check(model, row((2, 4), "1f1b", "z1"), steps=10, dtype="fp32")
