"""Exchanges of experts beside compute: what stays exposed, what is legal, and DeepSeek-V3 as it was trained."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright
from meshwright.errors import InputError
from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.layers.exchanges import EXCHANGE_UNITS, PAIRED_ON_TIME, exposed_exchanges
from meshwright.estimate.layers.work_seconds import LayerCompute
from meshwright.estimate.layout import expand
from meshwright.estimate.rules.legality import row_problems
from meshwright.estimate.rules.plan_checks import check_plan
from meshwright.library import models
from meshwright.library.clusters import resolve_gpus
from meshwright.specs.row_text import parse_row
from meshwright.specs.strategy import EXPERT_OVERLAPS
from meshwright.specs.workload import Workload
from meshwright.strategies.columns import BEST_OVERLAP
from tests.strategies.columns import columns

DEEPSEEK = {
    "gpus": "2048xH800",
    "global_batch": 15360,
    "seq_len": 4096,
    "dtype": "fp8-block",
    "dispatch_dtype": "fp8",
    "moment_dtype": "bf16",
}
RUN = "pp16.ep64.epdedup.dp128.z1.mbs1.rc-sel-layernorm-mla_up_proj-moe_act.dualpipe"


def step_s(plan: str, **other: object) -> float:
    return meshwright.estimate("deepseek-v3", plan=plan, **(DEEPSEEK | other)).plans[0].estimate.step_time_s


def test_deepseek_v3_as_published() -> None:
    """180 thousand H800 hours per 1e12 tokens, at 15,360 sequences of 4096 a step: 19.9 s on 2,048 of them.

    Source: DeepSeek-AI, DeepSeek-V3 technical report (arXiv 2412.19437), 2024-12, section 1 and table 1.
    """
    published_s = 180e3 * 3600 / 1e12 * 15360 * 4096 / 2048
    assert published_s == pytest.approx(19.9, abs=0.02)
    assert step_s(RUN) == pytest.approx(published_s, rel=0.12)


def test_each_part_of_the_exchange_counts() -> None:
    """All copies of a token, and exchanges with nothing beside them, make the step longer."""
    best = step_s(RUN)
    plain = step_s(RUN.replace(".epdedup", ""))
    exposed = step_s(RUN.replace(".dualpipe", ""))
    gathered = step_s(RUN.replace("epdedup", "epag"))
    assert best < plain < gathered
    assert best < exposed


def test_combined_1f1b_hides_exchanges_but_those_of_its_warm_up() -> None:
    plan = "pp8.vpp4.ep32.epdedup.{}dp64.z1.mbs1"
    job = {"gpus": "512xH100", "global_batch": 4096}
    alone, paired, delayed = (step_s(plan.format(token), **job) for token in ("", "epov.", "epov-wgrad."))
    assert paired < alone
    assert delayed < alone
    shared = step_s(plan.format("epov-shared."), **job)
    assert shared < alone


@given(exchange_s=st.floats(1e-6, 1.0), compute_s=st.floats(0.0, 1.0), units=st.integers(1, 200))
def test_kernels_that_exchange_slow_what_runs_beside_them_by_the_multiprocessors_that_they_hold(
    exchange_s: float, compute_s: float, units: int
) -> None:
    """Source: the rule of `meshwright.kernels.overlap`, and 20 multiprocessors of `EXCHANGE_UNITS`."""
    hardware = replace(hardware_of(resolve_gpus("8xH100").groups[0], Workload(seq_len=8, global_batch=8)), units=units)
    slowdown = max(hardware.efficiency.overlap_slowdown, units / max(units - EXCHANGE_UNITS, 1))
    shared = replace(columns(ep=8), ep_overlap=np.array([EXPERT_OVERLAPS.index("shared")]))
    best = replace(shared, ep_overlap=np.array([BEST_OVERLAP]))
    compute = LayerCompute(rows=1)
    for phase in ("forward", "input_gradient"):
        compute.add(compute.shared, phase, np.array([2 * compute_s]))
    on_time = hardware.software.overlap
    waits = exchange_s * (1 - on_time)
    beside = max(exchange_s * on_time - compute_s, exchange_s * on_time * (1 - 1 / slowdown))
    alone = {
        (way, phase): np.array([exchange_s]) for way in ("dispatch", "combine") for phase in ("forward", "backward")
    }
    whole = np.zeros(1), np.zeros(1)
    least = exchange_s * (1 - max(PAIRED_ON_TIME, on_time) / slowdown)
    for place, seconds in exposed_exchanges(alone, compute, whole, shared, hardware).items():
        assert seconds == pytest.approx(waits + beside), place
    for place, seconds in exposed_exchanges(alone, compute, whole, best, hardware).items():
        assert seconds == pytest.approx(least), place


@pytest.mark.parametrize(
    ("word", "field"),
    [
        ("epag", "dispatcher"),
        ("epmove", "dispatcher"),
        ("epov", "overlap"),
        ("epc2", "overlap_degree"),
        ("epbal", "placed_by_load"),
    ],
)
@pytest.mark.parametrize(("model", "why"), [("gpt2", "gpt2 has no experts"), ("mixtral-8x7b", "on every rank")])
def test_words_about_exchanges_that_a_plan_does_not_have_are_refused(
    word: str, field: str, model: str, why: str
) -> None:
    """In one line, and in the strategies of a plan file."""
    spec, row = models.spec(model), parse_row(f"{word}.dp8.z3.mbs1.gbs8", devices=8, global_batch=8, schedules=())
    assert [problem.what for problem in row_problems(row, spec, 1024, 8) if why in problem.why] == [
        f"{word} without ep"
    ]
    with pytest.raises(InputError) as refused:
        check_plan(expand(row, spec, 1024), spec, resolve_gpus("8xH100"), Workload(seq_len=1024, global_batch=8))
    assert [problem.field for problem in refused.value.problems if why in problem.why] == [
        f"strategies[0].expert.{field}"
    ]


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ("pp16.ep64.epag.epc2.dp128.mbs1", "tokens are gathered at once"),
        ("pp16.ep64.epov.dp128.mbs1", "runs no forward together with a backward"),
        ("pp16.epov.dp128.mbs1.dualpipe", "all experts are on every rank, so nothing is exchanged"),
        ("pp16.vpp2.ep64.epov.dp128.mbs1.rc-full", "recomputing a whole layer repeats its exchanges"),
    ],
)
def test_overlaps_that_nothing_runs(plan: str, why: str) -> None:
    with pytest.raises(InputError) as refused:
        step_s(plan, global_batch=16384)
    assert any(why in problem.why for problem in refused.value.problems)
