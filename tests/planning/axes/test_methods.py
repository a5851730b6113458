"""`--methods` opens whole axes to a search, names what it opened, and refuses what it cannot open."""

from __future__ import annotations

import re

import pytest

import meshwright as mw
from meshwright.errors import InfeasibleError, InputError
from meshwright.library import models
from meshwright.planning.axes import check_axes, space_of
from meshwright.planning.axes.methods import OPENED
from meshwright.schedules import schedule_named
from meshwright.search.axes import WAY_AXES
from meshwright.search.space import Space
from meshwright.specs import Workload
from meshwright.specs.expert_load import ExpertLoad

DENSE, EXPERTS = models.resolve("llama-3-8b"), models.resolve("mixtral-8x7b")
WORKLOAD = Workload(seq_len=4096, global_batch=64)


def space(model: object = DENSE, workload: Workload = WORKLOAD, **said: object) -> Space:
    return space_of(model, workload, 16, **said)


def test_an_axis_is_opened_to_every_value() -> None:
    found = space(methods="offload,tensor")
    assert found.opened == ("offload", "tensor")
    assert {axis: found.pinned(axis) for axis in found.opened} == {axis: OPENED[axis]() for axis in found.opened}
    assert found.pinned("schedule") is None


def test_schedules_that_are_opened_are_exact() -> None:
    names = space(methods="schedule").pinned("schedule") or ()
    assert len(names) > 20
    assert all(schedule_named(str(name)).exact_semantics for name in names)


def test_all_leaves_out_what_says_nothing_of_the_model() -> None:
    assert not {*space(methods="all").opened} & {*WAY_AXES}
    assert "hot_experts" not in space(EXPERTS, methods="all").opened
    loaded = Workload(seq_len=4096, global_batch=64, expert_load=ExpertLoad(zipf=1.2, experts=8))
    assert space(EXPERTS, loaded, methods="all").opened == tuple(axis for axis in OPENED if axis != "tp_overlap")


def test_what_is_said_of_an_axis_goes_before() -> None:
    found = space(methods="all", schedule="1f1b", offload="none", forbid="tensor=3d")
    assert found.opened == ("tensor", "tp_overlap", "cp_kind", "sharding", "prefetch")
    assert found.pinned("schedule") == ("1f1b",)
    assert "3d" not in (found.pinned("tensor") or ())


def test_a_sharding_that_is_forbidden_opens_no_other() -> None:
    assert "weipipe" not in (space(forbid="fsdp").pinned("sharding") or ())
    assert "weipipe" in (space(methods="sharding", forbid="fsdp").pinned("sharding") or ())


def test_wrong_names_are_refused_together_with_the_nearest_right_ones() -> None:
    with pytest.raises(InputError) as refused:
        check_axes(methods="scedule,tp,offlod")
    assert [problem.what for problem in refused.value.problems] == [
        "methods 'scedule'",
        "methods 'tp'",
        "methods 'offlod'",
    ]
    first, second, third = refused.value.problems
    assert first.fix == "did you mean schedule?"
    assert second.why == "a search goes through all values of it anyway"
    assert third.fix == "did you mean offload?"


def test_no_name_at_all_is_refused() -> None:
    with pytest.raises(InputError, match="names no axis"):
        check_axes(methods=" , ")


@pytest.mark.parametrize(
    ("model", "axis", "why"),
    [
        (DENSE, "dispatcher", "has no experts"),
        (EXPERTS, "hot_experts", "no load of them is stated"),
        (EXPERTS, "tp_overlap", "whole micro-batches"),
    ],
)
def test_an_axis_that_says_nothing_of_the_model_is_refused_by_name(model: object, axis: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        space(model, methods=axis)


def test_exchanges_go_before_gradients_where_the_axis_is_opened_and_they_meet() -> None:
    asked = {
        "gpus": "8x8xA100-80",
        "global_batch": 64,
        "seq_len": 4096,
        "top": 1,
        "pin": "pp=1,tp=1,cp=1,sharding=z1,z3,recompute=none",
    }
    narrow, wide = (mw.plan("mixtral-8x7b", methods=methods, **asked) for methods in (None, "ep_order"))
    assert wide.best.estimate.step_time_s < narrow.best.estimate.step_time_s
    assert ".epfirst." in wide.to_dict()["plans"][0]["name"]
    held = mw.plan("mixtral-8x7b", **asked | {"pin": f"{asked['pin']},epfirst"})
    assert held.best.estimate.step_time_s == wide.best.estimate.step_time_s


def test_halves_win_where_tensor_ranks_send_over_pcie() -> None:
    asked = {"gpus": "4xL40S", "global_batch": 16, "seq_len": 4096, "top": 1}
    narrow, wide = (mw.plan("llama-3.1-8b", methods=methods, **asked) for methods in (None, "tp_overlap"))
    assert wide.best.estimate.step_time_s < 0.95 * narrow.best.estimate.step_time_s
    assert "tpov-halves" in wide.to_dict()["plans"][0]["name"]


def test_gathering_no_layer_ahead_wins_where_its_memory_is_what_is_short() -> None:
    asked = {"gpus": "8xH100", "global_batch": 64, "seq_len": 4096, "top": 1, "pin": "tp=1,pp=1"}
    narrow, wide = (mw.plan("qwen2.5-32b", methods=methods, **asked) for methods in (None, "prefetch"))
    assert wide.best.estimate.step_time_s < narrow.best.estimate.step_time_s
    assert {strategy.data.prefetch for strategy in wide.best.plan.strategies} == {0}


@pytest.mark.parametrize(
    ("model", "said", "why"),
    [
        (DENSE, "tp_overlap=halves,mbs=1", "halves of whole sequences, mbs is 1"),
        (EXPERTS, "tp_overlap=halves", "whole micro-batches"),
        (DENSE, "tp_overlap=halves,tp=1", "no layer is split"),
        (DENSE, "prefetch=0,sharding=z1", "not gathered layer by layer"),
    ],
)
def test_halves_and_depths_that_no_plan_has_are_refused(model: object, said: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        space(model, pin=said)


@pytest.mark.parametrize(("beside", "why"), [("dispatcher=move-experts", "not exchanged"), ("z3", "in no order")])
def test_an_order_of_exchanges_that_no_plan_has_is_refused(beside: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        space(EXPERTS, pin=("epfirst", beside))


@pytest.mark.parametrize("pin", ["epfirst", "epdedup", "epov", "epshadow2"])
def test_ways_to_reach_experts_are_refused_where_there_are_none(pin: str) -> None:
    with pytest.raises(InputError, match="has no experts"):
        space(DENSE, pin=pin)
    assert space(EXPERTS, pin=pin)
    assert space(DENSE, forbid=pin)
    with pytest.raises(InputError, match="with ep=1 all experts are on every rank"):
        space(EXPERTS, pin=(pin, "ep=1"))


def test_a_plan_says_what_was_opened_and_is_no_slower() -> None:
    asked = {"gpus": "4xH100", "global_batch": 16, "top": 1, "schedule": "1f1b"}
    narrow, wide = (mw.plan("gpt2", methods=methods, **asked).to_dict() for methods in (None, "all"))
    assert wide["plans"][0]["estimate"]["step_time_s"] <= narrow["plans"][0]["estimate"]["step_time_s"]
    assert wide["search"]["space"] > narrow["search"]["space"]
    assert wide["search"]["optimal"]
    said = {one["name"]: one["value"] for one in wide["inputs"]["assumptions"]}
    assert said["methods"] == "every value of offload, tensor, tp_overlap, cp_kind, sharding, prefetch"
    opened = mw.plan("gpt2", methods="schedule,sharding", gpus="2xH100", global_batch=4, top=1).to_dict()
    said = {one["name"]: one["value"] for one in opened["inputs"]["assumptions"]}
    assert said["methods"] == "every exact schedule; every value of sharding"


@pytest.mark.parametrize(
    ("model", "gpus", "seq_len", "pins", "kind"),
    [
        # 4 divides 20,004 tokens and 8 does not; a2a sends in the open what stripes send behind attention.
        ("llama-3.1-8b", "8xH100", 20_004, "tp=1 cp=4 dp=2", "striped"),
        # Every head has keys of its own: a ring of queries returns three quarters of what one of keys does.
        ("llama-2-7b", "4x1xA100-80", 16_384, "tp=1 cp=4 dp=1 cp_kind=p2p,burst,striped", "burst"),
        ("llama-3.1-8b", "4x1xA100-80", 16_384, "tp=1 cp=4 dp=1 cp_kind=p2p,burst,striped", "p2p"),
    ],
)
def test_kinds_of_context_are_found_where_they_are_fastest(
    model: str, gpus: str, seq_len: int, pins: str, kind: str
) -> None:
    opened = None if "cp_kind" in pins else "cp_kind"
    asked = {"gpus": gpus, "seq_len": seq_len, "global_batch": 4, "pin": pins.split(), "methods": opened, "top": 1}
    (best,) = mw.plan(model, **asked).to_dict()["plans"]
    assert re.search(r"cp4(-[a-z0-9]+)?\.", best["name"])[0] == f"cp4{'' if kind == 'p2p' else f'-{kind}'}."


def test_what_a_target_or_a_pin_leaves_of_an_opened_axis_is_said() -> None:
    """It said `every value of tensor` of a framework without tensor ranks."""

    def methods_of(**said: object) -> str:
        found = mw.plan("gpt2", gpus="4xH100", global_batch=16, top=1, **said)
        return next(one.value for one in found.assumptions if one.name == "methods")

    assert methods_of(methods="tensor,prefetch") == "every value of tensor, prefetch"
    assert methods_of(methods="tensor,cp_kind", target="accelerate") == (
        "of tensor only 1d; of cp_kind only none, p2p, ag"
    )
    assert methods_of(methods="tensor,prefetch", pin=["tp=1"]) == "every value of prefetch; of tensor only 1d"


def test_a_depth_of_prefetching_as_pinned_says_what_it_asks_for() -> None:
    with pytest.raises(InfeasibleError, match=r"as pinned asks for .* z3, fsdp or hsdp on 2 devices or more"):
        mw.plan("gpt2", gpus="1xH100", global_batch=16, pin=["prefetch=0"])
