"""Which rows are legal: each rule refuses, says all that is wrong at once, and its remedy passes."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import Problem
from meshwright.estimate.layout import expand
from meshwright.estimate.rules.degrees import model_rules
from meshwright.estimate.rules.legality import plan_problems, row_degrees, row_problems
from meshwright.library.models import spec
from meshwright.schedules import SCHEDULES
from meshwright.specs import ModelSpec, PlanRow
from meshwright.specs.strategy import DataParallel, LayerStrategy
from tests.estimate.cases import DENSE, LATENT, MIXED, MODELS, TIED
from tests.estimate.mixed import Stage, plan_of

SEQ = 4096


def row(**fields: object) -> PlanRow:
    return PlanRow(**{"gbs": 64, **fields})


def problems(one: PlanRow, model: ModelSpec = DENSE, seq_len: int = SEQ, devices: int = 0) -> tuple[Problem, ...]:
    return row_problems(one, model, seq_len, devices or one.devices)


RULES = [
    # model, sequence, fields that break one rule, its field, its words, fields that mend it
    (DENSE, SEQ, {"tp": 64}, "tp", "divide the 32 attention heads", {"tp": 32}),
    (spec("falcon-7b"), SEQ, {"tp": 2}, "tp", "divide the 71 attention heads", {"tp": 71, "sp": False}),
    (spec("qwen2.5-7b"), SEQ, {"tp": 28, "sp": False}, "tp", "feed-forward width 18944", {"tp": 4}),
    (spec("phi-3-medium"), SEQ, {"tp": 4}, "tp", "divide the 10 key-value heads", {"tp": 2}),
    (DENSE, SEQ, {"cp": (("a2a", 64),)}, "cp", "all-to-all level of cp", {"cp": (("a2a", 32),)}),
    (DENSE, SEQ, {"tp": 8, "cp": (("a2a", 8),)}, "cp", "32 heads / tp", {"tp": 8, "cp": (("p2p", 8),)}),
    (DENSE, 1000, {"tp": 16}, "tp", "sequence parallelism cuts the 1000", {"tp": 16, "sp": False}),
    (DENSE, 1004, {"cp": (("p2p", 4),)}, "cp", "zigzag", {"cp": (("a2a", 4),)}),
    (DENSE, 1000, {"cp": (("a2a", 16),)}, "cp", "cp must divide the 1000", {"cp": (("a2a", 8),)}),
    (DENSE, SEQ, {"pp": 16}, "pp", "at least one of 12 layers", {"pp": 12}),
    (DENSE, SEQ, {"pp": 4, "vpp": 4, "schedule": "interleaved"}, "pp", "pp x vpp",
     {"pp": 4, "vpp": 3, "schedule": "interleaved"}),
    (DENSE, SEQ, {"dp": 2, "ep": 2}, "ep", "no experts", {"dp": 2}),
    (MIXED, SEQ, {"dp": 8, "ep": 16}, "ep", "must divide them", {"dp": 16, "ep": 16}),
    (MIXED, SEQ, {"tp": 2, "sp": False}, "sp", "every token several times", {"tp": 2}),
    (MIXED, SEQ, {"dp": 32, "ep": 32}, "ep", "divide the 16 experts", {"dp": 32, "ep": 16}),
    (spec("gpt-oss-20b"), SEQ, {"dp": 64, "tp": 2, "etp": 128}, "etp", "expert width 2880",
     {"dp": 64, "tp": 2, "etp": 64}),
    (DENSE, SEQ, {"dp": 4, "sharding": "hsdp", "shard_group": 3}, "hsdp", "number divides dp",
     {"dp": 4, "sharding": "hsdp", "shard_group": 2}),
    (DENSE, SEQ, {"dp": 4, "cp": (("p2p", 2),), "sharding": "hsdp", "shard_group": 1}, "hsdp", "all context ranks",
     {"dp": 4, "cp": (("p2p", 2),), "sharding": "hsdp", "shard_group": 4}),
    (DENSE, SEQ, {"recompute": "block", "recompute_layers": 13}, "recompute", "1 to 12", {"recompute": "full"}),
    (DENSE, SEQ, {"recompute": "uni", "recompute_layers": 0}, "recompute", "1 to 12",
     {"recompute": "uni", "recompute_layers": 1}),
    (DENSE, SEQ, {"dp": 3}, "gbs", "not a multiple of dp 3", {"dp": 4}),
    (DENSE, SEQ, {"pp": 3, "dp": 3, "schedule": "chimera"}, "p", "p = 3", {"pp": 2, "dp": 2, "schedule": "chimera"}),
    (DENSE, SEQ, {"pp": 2, "vpp": 2}, "v", "one chunk", {"pp": 2, "vpp": 2, "schedule": "interleaved"}),
]  # fmt: skip


@pytest.mark.parametrize(("model", "seq_len", "bad", "field", "words", "good"), RULES)
def test_each_rule_refuses_and_its_remedy_passes(
    model: ModelSpec, seq_len: int, bad: dict[str, object], field: str, words: str, good: dict[str, object]
) -> None:
    gbs = 7100 if bad.get("tp") == 71 else 64
    found = problems(row(gbs=gbs, **bad), model, seq_len)
    (mine,) = [problem for problem in found if problem.field == field and words in f"{problem.what} {problem.why}"]
    assert mine.fix
    assert problems(row(gbs=gbs, **good), model, seq_len) == ()


def test_every_rule_of_a_model_is_tried_above() -> None:
    tried = " ".join(f"{model.name} {words}" for model, _, _, _, words, _ in RULES)
    names = {rule.name for model in (DENSE, MIXED) for rule in model_rules(model, SEQ)}
    assert names == {
        "heads",
        "key-value heads",
        "a2a heads",
        "ffn",
        "sequence",
        "zigzag",
        "context",
        "layers",
        "experts",
        "folding",
        "token split",
        "expert ffn",
    }
    for words in ("attention heads", "key-value heads", "all-to-all", "feed-forward", "zigzag", "expert width"):
        assert words in tried


def test_all_problems_come_together() -> None:
    worst = row(
        tp=64,
        sp=False,
        cp=(("p2p", 3),),
        pp=16,
        ep=32,
        dp=5,
        sharding="hsdp",
        shard_group=7,
        recompute="block",
        recompute_layers=99,
    )
    found = problems(worst, MIXED, devices=64)
    assert {problem.field for problem in found} == {"dp", "tp", "cp", "pp", "ep", "sp", "gbs", "hsdp", "recompute"}
    assert len(found) == 9
    assert all(problem.what and problem.why and problem.fix for problem in found)


@pytest.mark.parametrize(("fields", "devices"), [({"tp": 8, "dp": 4}, 64), ({"tp": 4, "pp": 2, "dp": 2}, 64)])
def test_a_wrong_number_of_devices_names_the_data_degree_that_fits(fields: dict[str, int], devices: int) -> None:
    wrong = row(**fields)
    (problem,) = problems(wrong, devices=devices)
    found = re.search(r"use dp(\d+)", problem.fix)
    assert found
    assert problems(replace(wrong, dp=int(found[1])), devices=devices) == ()


@pytest.mark.parametrize(
    ("devices", "words"), [(12, "use 8 devices (dp1)"), (6, "use at least 8 devices"), (100, "use 96 devices (dp12)")]
)
def test_devices_that_no_degree_fills(devices: int, words: str) -> None:
    (problem,) = problems(row(tp=8, dp=2), devices=devices)
    assert words in problem.fix


@given(dp=st.integers(1, 16), mbs=st.integers(1, 8), gbs=st.integers(1, 300))
def test_the_batches_it_names_pass(dp: int, mbs: int, gbs: int) -> None:
    wrong = row(dp=dp, mbs=mbs, gbs=gbs)
    found = problems(wrong)
    assert bool(found) == bool(gbs % (dp * mbs))
    for problem in found:
        for batch in re.findall(r"\d+", problem.fix):
            assert problems(replace(wrong, gbs=int(batch))) == ()


degrees = st.sampled_from([1, 2, 3, 4, 5, 6, 8, 16, 32])


@given(
    model=st.sampled_from(MODELS),
    seq_len=st.sampled_from([1000, 4096]),
    fields=st.fixed_dictionaries(
        dict.fromkeys(("tp", "pp", "vpp", "ep", "etp", "dp", "mbs"), degrees),
        optional={
            "sp": st.booleans(),
            "cp": st.tuples(st.tuples(st.sampled_from(["p2p", "a2a", "ag"]), st.sampled_from([2, 3, 4, 8]))),
            "schedule": st.sampled_from(sorted(SCHEDULES)),
            "gbs": st.integers(1, 512),
        },
    ),
)
def test_a_row_without_problems_is_a_plan(model: ModelSpec, seq_len: int, fields: dict[str, object]) -> None:
    """And no combination of degrees is more than a list of problems."""
    one = row(**fields)
    found = problems(one, model, seq_len)
    assert len(found) == len({(problem.what, problem.why) for problem in found})
    if not found:
        plan = expand(one, model, seq_len)
        assert (plan.devices, plan.global_batch, plan.num_layers) == (one.devices, one.gbs, model.num_layers)


def test_rules_look_at_columns_as_at_rows() -> None:
    """What the search asks of a grid is what is asked of one row."""

    rows = [row(tp=tp, pp=pp, ep=ep, dp=4) for tp in (1, 2, 3, 16) for pp in (1, 9, 12) for ep in (1, 4, 8)]
    for model in (MIXED, LATENT, TIED):
        each = [row_degrees(one) for one in rows]
        columns = {name: np.concatenate([degrees[name] for degrees in each]) for name in each[0]}
        for rule in model_rules(model, SEQ):
            alone = [bool(rule.holds(degrees)[0]) for degrees in each]
            assert np.broadcast_to(rule.holds(columns), len(rows)).tolist() == alone


def test_a_number_of_micro_batches_is_told_by_the_batch_that_makes_it() -> None:
    (problem,) = problems(row(dp=2, mbs=2, pp=4, vpp=2, gbs=72, schedule="interleaved"))
    assert "gbs 72 / (dp 2 x mbs 2) = 18 micro-batches" in problem.why
    near = [int(one) for one in re.findall(r"\d+", problem.fix)]
    assert near == [64, 80]
    assert not any(problems(row(dp=2, mbs=2, pp=4, vpp=2, gbs=gbs, schedule="interleaved")) for gbs in near)


def test_each_stage_takes_an_even_share_of_a_micro_batch() -> None:
    """Two data ranks of 3 sequences each in front: 6 in all, which three ranks share evenly and four do not."""

    def said(dp: int) -> list[str]:
        front, behind = (LayerStrategy(data=DataParallel(replicate=degree)) for degree in (2, dp))
        plan = plan_of(([Stage(0, front, 6), Stage(8, behind, 6)], 3, 4))
        return [problem.what for problem in plan_problems(plan, DENSE, 4096)]

    assert said(3) == []
    assert said(4) == ["stage 1: dp 4 does not divide the 6 sequences of a micro-batch"]


@pytest.mark.parametrize("sp", [False, True])
def test_a_plan_is_refused_where_its_tensor_ranks_hold_every_token_of_experts(sp: bool) -> None:
    layers = Stage(0, row(tp=2, sp=sp).strategy(), MIXED.num_layers)
    found = plan_problems(plan_of(([layers], 1, 2)), MIXED, SEQ)
    assert [problem.field for problem in found] == ([] if sp else ["sp"])
