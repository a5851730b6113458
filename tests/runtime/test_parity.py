"""Every model, mesh and schedule ends where one device ends: losses, gradients of the first step, weights of the last.

The quick cover has every model with every mesh shape, every sharding of states with every mesh shape, and every
schedule; the whole product is marked slow. All but a few cases count in 64 bits, where 1e-9 leaves no room for a slip.
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


def training(model: str, row: PlanRow) -> Training:
    """Two layers, cut inside them where there are more stages; the perceptron has eight."""
    spec = scaled(TINY[model], layers=2, hidden=16, vocab=24) if model in TINY else None
    return Training(spec=spec, row=row, stage_layers=(2,) if spec else (8,), seq_len=LENGTH, hidden=8)


@cache
def alone(model: str, steps: int, dtype: str) -> Outcome:
    """One device is the same for all plans of as many micro-batches."""
    return run_alone(training(model, PlanRow(dp=1, mbs=SAMPLES // MICRO_BATCHES, gbs=SAMPLES)), steps)


def check(model: str, row: PlanRow, steps: int = 2, dtype: str = "fp64") -> None:
    with precision(dtype):
        found = compare(run_parallel(training(model, row), jax.devices(), steps), alone(model, steps, dtype), dtype)
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
        return {(model, one.pp), (one.pp, one.sharding), (one.schedule,)}

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


@pytest.mark.slow
@pytest.mark.parametrize(("model", "plan"), ALL, ids=name_of)
def test_all_cases_end_where_one_device_ends(model: str, plan: PlanRow) -> None:
    check(model, plan, steps=10)


@pytest.mark.parametrize("model", MODELS)
def test_ten_steps_in_32_bits(model: str) -> None:
    check(model, row((2, 4), "1f1b", "z1"), steps=10, dtype="fp32")
