"""Pins, bans, schedules and targets narrow the space as they say, or are refused."""

from __future__ import annotations

import pytest

from meshwright.errors import InputError, UnsupportedError
from meshwright.library import models
from meshwright.planning.axes import space_of, target_rule
from meshwright.search.legal_rows import build_grid
from meshwright.search.space import Space
from meshwright.specs import Workload

MODEL = models.resolve("llama-3-8b")
WORKLOAD = Workload(seq_len=4096, global_batch=64)


def space(**said: object) -> Space:
    return space_of(MODEL, WORKLOAD, 16, **said)


@pytest.mark.parametrize(
    ("pin", "axis", "values"),
    [
        ("tp=8", "tp", (8,)),
        ("tp=4,8", "tp", (4, 8)),
        ("tp8", "tp", (8,)),
        ("sharding=z1", "sharding", ("z1",)),
        ("zero=1", "sharding", ("z1",)),
        ("fsdp", "sharding", ("fsdp",)),
        ("rc-full", "recompute", ("full",)),
        ("rc=sel", "recompute", ("sel",)),
        ("tpov", "tp_overlap", ("ring",)),
        ("schedule=dapple", "schedule", ("1f1b",)),
    ],
)
def test_a_pin_holds_an_axis(pin: str, axis: str, values: tuple[object, ...]) -> None:
    assert space(pin=pin).pinned(axis) == values


def test_one_text_may_hold_several_pins() -> None:
    found = space(pin="tp=4,8,sharding=z1,z2,pp=2")
    assert [found.pinned(axis) for axis in ("tp", "sharding", "pp")] == [(4, 8), ("z1", "z2"), (2,)]
    assert found == space(pin=["tp=4,8", "sharding=z1,z2", "pp=2"])


def test_an_axis_that_is_forbidden_stays_plain() -> None:
    assert space(forbid="vpp").pinned("vpp") == (1,)
    assert space(forbid="recompute").pinned("recompute") == ("none",)


def test_a_value_that_is_forbidden_leaves_the_others() -> None:
    assert space(forbid="tp=8").pinned("tp") == (1, 2, 4, 16)
    found = space(forbid="fsdp,hsdp").pinned("sharding")
    assert found is not None
    assert "fsdp" not in found
    assert "fsdp-keep" in found


def test_pins_and_bans_meet() -> None:
    assert space(pin="tp=4,8", forbid="tp=8").pinned("tp") == (4,)
    with pytest.raises(InputError, match="leaves no value of tp"):
        space(pin="tp=8", forbid="tp=8")


def test_a_schedule_named_without_settings_is_tried_with_those_that_can_pay() -> None:
    named = space(schedule="seq1f1b,chimera").pinned("schedule")
    assert named == (
        "seq1f1b",
        "seq1f1b-segments4",
        "seq1f1b-segments8",
        "chimera",
        "chimera-halving",
        "chimera-doubling",
    )
    assert space(schedule="seq1f1b-segments4").pinned("schedule") == ("seq1f1b-segments4",)
    assert space(schedule="1f1b").pinned("schedule") == ("1f1b",)
    assert "seq1f1b-segments4" not in (space(schedule="all").pinned("schedule") or ())


def test_schedules() -> None:
    assert space(schedule="1f1b,gpipe").pinned("schedule") == ("1f1b", "gpipe")
    assert len(space(schedule="all").pinned("schedule") or ()) >= 3


@pytest.mark.parametrize(("name", "axis"), [("weipipe", "sharding"), ("2d", "tensor"), ("move-experts", "dispatcher")])
def test_a_method_that_is_no_schedule_is_refused_with_its_own_axis(name: str, axis: str) -> None:
    with pytest.raises(InputError, match=f"--pin {axis}={name}"):
        space(schedule=name)


def test_wrong_names_and_values_come_together() -> None:
    with pytest.raises(InputError) as caught:
        space(pin=["tpp=8", "sharding=z9", "tp=0"], forbid=["vpq", "schedule"], schedule="zbq")
    assert len(caught.value.problems) == 6
    assert "did you mean" in str(caught.value)


@pytest.mark.parametrize(
    ("pin", "word"),
    [
        ("tp=3", "devices"),
        ("dp=128", "devices"),
        ("mbs=7", "batch"),
        ("vpp=33", "layers"),
        ("ep=2", "experts"),
        (["tp=8", "pp=4"], "tp8 x pp4 = 32"),
        (["tp=2", "cp=1", "pp=1", "dp=4"], "= 8"),
    ],
)
def test_pins_that_no_plan_can_have_are_refused(pin: str | list[str], word: str) -> None:
    with pytest.raises(InputError, match=word):
        space(pin=pin)


@pytest.mark.parametrize(
    ("pin", "neutral", "degree"),
    [
        ("tp_overlap=ring", "bulk", "tp"),
        ("cp_kind=a2a,ag", "none", "cp"),
        ("dispatcher=move-experts", "alltoall", "ep"),
    ],
)
def test_a_way_to_work_together_holds_plans_to_a_group_unless_its_neutral_value_is_named(
    pin: str, neutral: str, degree: str
) -> None:
    model, workload = models.spec("mixtral-8x7b"), Workload(global_batch=16, seq_len=4096)
    held = build_grid(model, workload, 8, space_of(model, workload, 8, pin=pin))
    free = build_grid(model, workload, 8, space_of(model, workload, 8, pin=f"{pin},{neutral}"))
    assert held.rows
    assert (getattr(held, degree) > 1).all()
    assert {1, 2} <= {*getattr(free, degree).tolist()}
    with pytest.raises(InputError, match=f"{degree}=1"):
        space_of(model, workload, 8, pin=[pin, f"{degree}=1"])
    with pytest.raises(InputError, match="one device"):
        space_of(model, workload, 1, pin=pin)


def test_targets() -> None:
    assert target_rule(None) is None
    assert target_rule("megatron") is not None
    with pytest.raises(UnsupportedError, match="megatron"):
        target_rule("megatrom")


def test_a_tensor_strategy_that_no_legal_plan_has_is_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match="experts has no rule"):
        space_of(models.resolve("mixtral-8x7b"), WORKLOAD, 8, pin="tensor=2d")
    assert space_of(MODEL, WORKLOAD, 8, pin="tensor=1d,2d").pinned("tensor") == ("1d", "2d")
    assert space_of(MODEL, WORKLOAD, 8, forbid="tensor").pinned("tensor") == ("1d",)


@pytest.mark.parametrize(
    ("pin", "what"),
    [
        ("ep_overlap=paired", "ep_overlap=paired with dispatcher=move-experts"),
        ("ep_order=first", "ep_order=first with dispatcher=move-experts"),
    ],
)
def test_nothing_runs_beside_or_before_an_exchange_that_is_pinned_away(pin: str, what: str) -> None:
    experts = models.resolve("mixtral-8x7b")
    with pytest.raises(InputError, match=what) as refused:
        space_of(experts, WORKLOAD, 16, pin=["dispatcher=move-experts", pin])
    assert [problem.why for problem in refused.value.problems] == ["tokens are not exchanged"]
