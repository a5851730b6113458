"""`plan`: the answer holds together, says what it rests on, and says why where there is none."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright as mw
from meshwright import plan
from meshwright.app.export import export
from meshwright.errors import InfeasibleError, InputError, UnsupportedError
from meshwright.formats.plan_json import read_document, read_job
from meshwright.library.calibration import calibration
from meshwright.library.clusters import resolve_gpus
from meshwright.planning.fewer_nodes import first_nodes, is_round, parts
from meshwright.planning.objectives import OBJECTIVES, Aim
from meshwright.planning.plan_shape import bare_row
from meshwright.planning.repair.no_plan import NoPlanError
from meshwright.search.search import search
from meshwright.specs.row_text import parse_row
from tests.app.questions import BATCH, GPUS, MODEL, best_plans


def without_timing(document: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in document.items() if key != "timing"}


def test_the_first_plan_is_the_best_and_the_search_says_so() -> None:
    plans = best_plans()
    times = [entry.estimate.step_time_s for entry in plans]
    assert times == sorted(times)
    assert [entry.rank for entry in plans] == list(range(1, len(plans) + 1))
    assert plans.certificate is not None
    assert plans.certificate.optimal
    assert plans[0].estimate.fits == "yes"


def test_plan_gives_what_the_search_gives() -> None:
    plans = best_plans()
    found = search(plans.model, plans.cluster, plans.workload, top=5)
    assert [entry.plan for entry in plans] == [each.plan for each in found.plans]


def test_a_plan_set_is_a_sequence() -> None:
    plans = best_plans()
    assert plans[0] is next(iter(plans)) is plans.best
    assert plans[-1].rank == len(plans)
    assert [entry.rank for entry in plans[:2]] == [1, 2]


def test_the_document_has_the_promised_keys() -> None:
    document = best_plans().to_dict()
    assert document["schema"] == "meshwright.plan-set/1"
    assert {"model", "cluster", "workload", "assumptions"} <= set(document["inputs"])
    assert {"space", "priced", "feasible", "pruned", "optimal", "bound_step_time_s"} <= set(document["search"])
    assert set(document["verdict"]) == {"text", "why", "runner_up", "reasons"}
    assert set(document["verdict"]["runner_up"]) == {"name", "title", "step_time_s", "loses_because"}
    for entry in document["plans"]:
        assert {"rank", "name", "plan", "estimate"} <= set(entry)
        assert entry["plan"]["schema"] == "meshwright.plan/1"
    # Strict JSON: no NaN, no Infinity.
    json.dumps(document, allow_nan=False)


def test_estimates_add_up() -> None:
    for entry in best_plans().to_dict()["plans"]:
        estimate = entry["estimate"]
        parts_s = estimate["breakdown_s"].values()
        assert min(parts_s) >= 0
        assert math.isclose(sum(parts_s), estimate["step_time_s"], rel_tol=1e-9)
        assert estimate["step_time_low_s"] < estimate["step_time_s"] < estimate["step_time_high_s"]
        for stage in estimate["stages"]:
            assert math.isclose(sum(stage["memory_bytes"].values()), stage["peak_memory_bytes"], rel_tol=1e-9)


def test_every_plan_is_a_plan_file_of_its_own() -> None:
    plans = best_plans()
    document = plans.to_dict()
    for number, entry in enumerate(plans, start=1):
        assert read_document(document["plans"][number - 1]["plan"]).job == entry.job
        assert read_job(json.dumps(document), number).job.plan == entry.plan


def test_the_same_question_has_the_same_answer() -> None:
    again = plan(MODEL, gpus=GPUS, global_batch=BATCH)
    first, second = (json.dumps(without_timing(p.to_dict()), sort_keys=True) for p in (best_plans(), again))
    assert first == second


def test_the_verdict_says_what_the_numbers_say() -> None:
    plans = best_plans()
    assert plans.verdict.text.startswith("llama-3-8b on 8 H100: ")
    assert plans.verdict.text.endswith(": fits.")
    assert "per step (" in plans.verdict.text
    assert "MFU" in plans.verdict.text
    assert plans.verdict.runner_up is not None
    other = next(entry for entry in plans if entry.layout != plans[0].layout)
    assert plans.verdict.runner_up.name == other.name
    word = "tie" if other.estimate.step_time_s < 1.02 * plans[0].estimate.step_time_s else "slower"
    assert word in plans.verdict.runner_up.loses_because


def test_identities_are_written_out() -> None:
    best = best_plans()[0]
    product, layers, batch = best.identities()
    assert product.startswith("8 = ")
    assert math.prod(int("".join(c for c in word if c.isdigit())) for word in product[4:].split(" x ")) == 8
    assert layers == "layers 32" or sum(map(int, layers[7:].split(" = ")[0].split("+"))) == 32
    assert batch.startswith("64 sequences of 4,096 tokens = dp")


def test_one_plan_still_has_a_runner_up() -> None:
    plans = best_plans(top=1)
    assert len(plans) == 1
    assert plans.verdict.runner_up == best_plans().verdict.runner_up


def test_pins_hold_in_every_plan() -> None:
    plans = plan(MODEL, gpus=GPUS, pin="tp=4", forbid="vpp", global_batch=BATCH)
    assert {(entry.row.tp, entry.row.vpp) for entry in plans if entry.row} == {(4, 1)}
    notes = {a.name: a.value for a in plans.assumptions}
    assert notes["only tp"] == "4"
    assert plans[0].estimate.step_time_s >= best_plans()[0].estimate.step_time_s


def test_tokens_give_days_and_cost() -> None:
    plans = plan(MODEL, gpus=GPUS, tokens="1T", price=2.0, global_batch=BATCH, pin="tp=1,pp=1,cp=1")
    run = plans.run
    assert run is not None
    computing_days = 1e12 / (4096 * BATCH) * plans[0].estimate.step_time_s / 86400
    assert math.isclose(run.days * run.goodput.share, computing_days)
    assert run.goodput.low < run.goodput.share < 1
    assert "failures" in {note.name for note in plans.assumptions}
    assert run.price is not None
    assert math.isclose(run.price, 2.0 * run.device_hours)
    assert "days" in plans.verdict.text
    assert plans.to_dict()["run"]["days"] == run.days


def test_stated_failures_replace_those_of_public_runs() -> None:
    job = {"gpus": GPUS, "tokens": "1T", "global_batch": BATCH, "pin": "tp=1,pp=1,cp=1", "top": 1}
    never, often = (plan(MODEL, **job, failures=text).run for text in ("none", "rate=5%/day,restart=1h"))
    assert never is not None
    assert often is not None
    assert never.goodput.share == 1
    assert often.days > 1.01 * never.days
    with pytest.raises(InputError, match="--failures without --tokens"):
        plan(MODEL, gpus=GPUS, failures="none")


def test_megatron_runs_every_plan_made_for_it() -> None:
    plans = plan(MODEL, gpus=GPUS, target="megatron", top=3, global_batch=BATCH)
    assert len(plans) == 3
    for entry in plans:
        assert any(name == "train.sh" for name, _ in entry.export("megatron").files)


def test_nodes_that_no_trial_plan_of_a_target_fills_still_run_its_plans() -> None:
    assert plan("gpt2", gpus="2x3xH100", target="megatron", top=1, global_batch=12)[0].name


def test_a_schedule_that_a_target_does_not_run_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="schedule is 'zb-v'"):
        plan("gpt2", gpus="4xH100", target="megatron", schedule="zb-v", global_batch=8)
    with pytest.raises(InfeasibleError, match="suit zb-v"):
        plan("gpt2", gpus="4xH100", schedule="zb-v", pin=("pp=2", "vpp=1"), global_batch=8)


def test_a_model_a_target_cannot_run_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="ALiBi"):
        plan("bloom-176b", gpus="256xH100", target="megatron")


@pytest.mark.parametrize("target", ["torchtitan", "automodel"])
def test_a_target_that_exchanges_tokens_one_way_still_runs_experts(target: str) -> None:
    """The quickest plans deduplicate and overlap the exchange of experts, which these targets have no key for."""
    best = plan("qwen3-30b-a3b", gpus="16xH100", target=target, pin="ep=4", top=1)[0]
    assert "ep4" in best.name
    assert "epdedup" not in best.name
    assert "epov" not in best.name


def test_memory_as_objective_takes_the_smallest_of_the_front() -> None:
    plans = plan(MODEL, gpus=GPUS, objective="memory", global_batch=BATCH, forbid="cp")
    peaks = [entry.estimate.peak_memory_bytes for entry in plans]
    assert peaks == sorted(peaks)
    quickest = plan(MODEL, gpus=GPUS, global_batch=BATCH, forbid="cp")[0].estimate
    assert peaks[0] <= quickest.peak_memory_bytes
    assert plans[0].estimate.step_time_s <= 1.1 * quickest.step_time_s + 1e-9


def test_cost_as_objective_is_never_dearer_than_all_devices() -> None:
    few = {"global_batch": 8, "forbid": "cp,vpp,hsdp", "pin": "recompute=none"}
    plans = plan(MODEL, gpus="16xH100", objective="cost", **few)
    whole = plan(MODEL, gpus="16xH100", **few)
    dear = whole[0].estimate.step_time_s * 16
    used = plans[0].plan.devices
    assert plans[0].estimate.step_time_s * used <= dear * (1 + 1e-9)
    assert used == 16 or any("idle" in text for text in plans.warnings)


def test_the_front_is_there_when_asked_for() -> None:
    plans = plan(MODEL, gpus=GPUS, pareto=True, global_batch=8, forbid="cp")
    whole = [f.plan.estimate for f in plans.pareto if f.devices == plans.cluster.devices]
    front = sorted((estimate.step_time_s, estimate.peak_memory_bytes) for estimate in whole)
    assert {f.devices for f in plans.pareto} > {plans.cluster.devices}
    assert front
    assert [peak for _, peak in front] == sorted((peak for _, peak in front), reverse=True)
    assert len(plans.to_dict()["pareto"]) == len(plans.pareto)


# Devices


def test_devices_that_must_idle_are_named() -> None:
    plans = plan(MODEL, gpus="61x1xH100", global_batch=1024, pin="recompute=none,sharding=z1,mbs=1", forbid="vpp")
    assert plans[0].plan.devices == 60
    assert plans.cluster.devices == 61
    assert any(text.startswith("60 of 61 devices used, 1 idle: 61 is divisible by 61") for text in plans.warnings)


def test_all_devices_are_used_or_it_says_why_not() -> None:
    for count in (6, 7, 8):
        plans = plan(MODEL, gpus=f"{count}xH100", pin="sharding=z1,recompute=none", forbid="vpp,cp", global_batch=64)
        used = plans[0].plan.devices
        assert used == count or any(f"{used} of {count} devices used" in text for text in plans.warnings)


@given(nodes=st.integers(2, 40), per_node=st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=20)
def test_parts_of_a_cluster_are_smaller_and_whole(nodes: int, per_node: int) -> None:
    cluster = resolve_gpus(f"{nodes}x{per_node}xH100")
    found = list(parts(cluster))
    counts = [part.devices for part in found]
    assert counts == sorted(counts, reverse=True)
    assert all(0 < count < cluster.devices for count in counts)
    for part in found:
        sizes = [domain.size for domain in part.groups[0].domains]
        assert sizes == sorted(sizes)
        assert sizes[-1] >= part.devices


def test_a_part_of_whole_nodes_is_what_the_user_would_write() -> None:
    part = first_nodes(resolve_gpus("64xH100"), nodes=4, per_node=8)
    assert part.groups[0].domains == resolve_gpus("32xH100").groups[0].domains


def test_round_counts() -> None:
    assert [n for n in range(1, 30) if not is_round(n)] == [11, 13, 17, 19, 22, 23, 26, 29]


def test_groups_that_leave_their_links_are_warned_of() -> None:
    plans = plan("llama-3-70b", gpus="32xH100", pin="tp=16,sharding=z1,mbs=1", forbid="vpp,cp,recompute")
    assert any(text.startswith("tp16 leaves its NVLink4 domain of 8: 8 of 16 ranks") for text in plans.warnings)
    inside = plan("llama-3-70b", gpus="32xH100", pin="tp=8,sharding=z1,mbs=1", forbid="vpp,cp,recompute")
    assert not any(text.startswith("tp") for text in inside.warnings)


# Nothing fits


def test_what_does_not_fit_comes_with_repairs_that_do() -> None:
    with pytest.raises(InfeasibleError) as caught:
        plan(MODEL, gpus="1xH100", global_batch=8)
    error = caught.value
    assert isinstance(error, NoPlanError)
    assert error.exit_code == 3
    assert "GiB too much" in error.problems[0].why
    document = error.to_dict()
    assert document["feasible"] is False
    assert "\n" not in str(document["problems"])
    options = [repair.option for repair in error.repairs]
    more = next(option for option in options if option.startswith("--gpus") and option.endswith("xH100"))
    assert all(repair.peak_memory_bytes <= repair.capacity_bytes for repair in error.repairs)
    # The repair is true: with these devices there is a plan, at least as quick as was said.
    repaired = plan(MODEL, gpus=more.split()[1], global_batch=8)
    said = next(repair for repair in error.repairs if repair.option == more)
    assert repaired[0].estimate.step_time_s <= said.step_time_s * (1 + 1e-9)


def test_pins_that_leave_nothing_that_fits_are_named() -> None:
    with pytest.raises(InfeasibleError) as caught:
        plan(MODEL, gpus="2xH100", pin="sharding=z0,recompute=none", forbid="vpp", global_batch=8)
    assert "pins" in caught.value.problems[0].what
    assert "free the pin sharding=z0" in caught.value.problems[0].fix


def test_the_schedule_and_every_pin_hold_in_what_is_said_and_in_the_repairs() -> None:
    """GPipe keeps all micro-batches alive; 1F1B would fit."""
    with pytest.raises(NoPlanError) as caught:
        plan(MODEL, gpus="8xA100-40", schedule="gpipe", pin=("pp=4", "tp=2", "recompute=none"), global_batch=256)
    problem = caught.value.problems[0]
    assert ".gpipe" in problem.what
    assert "-" not in problem.why.rpartition(";")[2]
    freed, *others = caught.value.repairs
    assert freed.option == "free the pin pp=4"
    for repair in others:
        assert ".gpipe" in repair.plan
        assert "pp4" in repair.plan
    for repair in caught.value.repairs:
        assert "tp2" in repair.plan
        assert "rc-" not in repair.plan


def test_more_devices_are_those_that_were_priced() -> None:
    """Twice seven devices are two nodes of eight."""
    with pytest.raises(NoPlanError) as caught:
        plan("llama-3.1-70b", gpus="7xH100", pin="recompute=full")
    repair = next(one for one in caught.value.repairs if one.option.startswith("--gpus") and one.devices > 7)
    assert repair.option.startswith(f"--gpus {repair.devices}xH100 --gbs ")
    batch = int(repair.option.rpartition(" ")[2])
    row = parse_row(repair.plan, devices=repair.devices, global_batch=batch, schedules=("1f1b",))
    assert row.devices == repair.devices


def test_devices_that_no_degrees_multiply_to() -> None:
    with pytest.raises(InfeasibleError, match="no legal plan") as caught:
        plan("gpt2", gpus="1x1xH100", global_batch=7, pin="mbs=7,recompute=none", forbid="sharding=z0")
    assert caught.value.code == "MW301"


def test_recompute_by_layer_has_no_one_line_form_but_a_title() -> None:
    plans = plan(MODEL, gpus="2xH100", global_batch=16)
    assert plans[0].name is None
    assert plans[0].title.endswith(" + recompute per layer")
    assert "recompute: chosen per layer after the search" in plans.verdict.why
    assert plans.to_dict()["plans"][0]["name"] is None
    assert plans[0].identities()[0] == bare_row(plans[0].plan, plans[0].job.model).identity()
    assert all(entry.title == entry.name or " + recompute" in entry.title for entry in plans)
    assert plans[0].explain().ladder[-1].change == "choose recompute per layer"
    assert plans[0].explain().ladder[-1].step_time_s == plans[0].estimate.step_time_s


def test_short_steps_are_told_in_their_own_unit() -> None:
    text = plan("gpt2", gpus="8xH100", global_batch=8).verdict.text
    assert " ms per step (" in text
    low, high = text.split(" ms per step (")[1].split(")")[0].split("-")
    assert float(low) < float(text.split(": ")[1].split(" ms")[0]) < float(high)


def test_options_that_are_none_are_refused_together() -> None:
    with pytest.raises(InputError) as caught:
        plan(MODEL, gpus=GPUS, top=0, objective="spead")
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(("objective", "word"), [("memory", "memory"), ("cost", "cost")])
def test_another_objective_says_its_rule(objective: str, word: str) -> None:
    plans = plan(MODEL, gpus=GPUS, global_batch=BATCH, objective=objective)
    rule = OBJECTIVES[objective].rule
    assert any(rule in line for line in plans.verdict.why)
    assert any(a.name == "objective" and rule in a.value for a in plans.assumptions)
    assert plans.verdict.runner_up is not None
    assert word in plans.verdict.runner_up.loses_because
    assert not any("optimal" in line for line in plans.verdict.why)


def test_what_the_reserve_keeps_out_is_said_where_memory_is_short() -> None:
    why = plan(MODEL, gpus="2xH100", global_batch=16).verdict.why
    lines = [line for line in why if line.startswith("memory reserve:")]
    assert len(lines) == 1
    assert "8%" in lines[0]
    assert "offload" in lines[0]
    roomy = plan("gpt2", gpus=GPUS, global_batch=BATCH).verdict.why
    assert not any(line.startswith("memory reserve:") for line in roomy)


def test_a_capped_batch_is_said_in_full() -> None:
    plans = plan("gpt2", gpus="64xH100", seq_len=1, pin=("tp=1", "cp=1", "sharding=z1"))
    value = next(a.value for a in plans.assumptions if a.name == "global_batch")
    assert "/ 1 = 4,194,304, capped" in value


def test_what_is_not_there_says_what_to_do_instead() -> None:
    with pytest.raises(AttributeError, match="export"):
        _ = best_plans()[0].apply
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = best_plans().nothing


def test_plans_that_cannot_be_told_apart_are_a_tie() -> None:
    found = best_plans()
    near = [
        plan.rank
        for plan in found
        if plan.estimate.step_time_s < found.best.estimate.step_time_s * (1 + calibration().tie)
    ]

    assert found.to_dict()["tie"] == {"within": calibration().tie, "ranks": near if len(near) > 1 else []}
    assert replace(found, aim=Aim(objective="memory")).tied_ranks == ()


def test_a_target_runs_the_quicker_kind_wherever_it_stands() -> None:
    for gpus in ("8xA100-80,8xH100", "8xH100,8xA100-80"):
        found = plan("llama-3.1-8b", gpus=gpus, target="deepspeed")
        assert {stage.group for stage in found.best.estimate.stages} == {"H100"}, gpus
        assert found.mixing is not None
        assert dict(found.mixing.frameworks)["deepspeed"] == ""


@pytest.mark.parametrize("target", ["megatron", "torchtitan", "automodel", "torch-csv"])
def test_a_target_that_takes_one_set_of_degrees_mixes_kinds(target: str, tmp_path: Path) -> None:
    """Stages of equally many devices under one strategy, which differ in their layers: quicker than any kind alone."""
    found = plan("llama-3.1-8b", gpus="8xH100,2x8xA100-80", seq_len=8192, global_batch=96, target=target, top=3)
    assert found.mixing is not None
    assert (found.mixing.gain or 0.0) > 0.2
    for one in found:
        assert mw.export(one, target, str(tmp_path / f"{target}-{one.rank}")).files
    layers = [sum(last - first for first, last in stage.layers) for stage in found.best.estimate.stages]
    assert len(set(layers)) > 1


@pytest.mark.parametrize(
    ("gpus", "target", "used"), [("13xA100-80", "deepspeed", 13), ("8xTPU-v5p,8xH100", "maxtext", 8)]
)
def test_nodes_of_another_size_refuse_no_plan(gpus: str, target: str, used: int) -> None:
    """They give their ranks the same work where they can talk to the others, and stay idle where they cannot."""
    found = plan("llama-3.1-8b", gpus=gpus, target=target)
    assert found.best.plan.devices == used
    assert found.mixing is not None
    assert dict(found.mixing.frameworks)[target] == ""


def test_nothing_is_pinned_by_a_target() -> None:
    with pytest.raises(InfeasibleError) as none:
        plan("llama-3.1-70b", gpus="4xA100-80,4xH100", target="deepspeed")
    assert "free a pin" not in str(none.value)
    with pytest.raises(InfeasibleError) as pinned:
        plan("llama-3.1-70b", gpus="4xA100-80,4xH100", target="deepspeed", pin="tp=1")
    assert "free a pin" in str(pinned.value)


def test_frameworks_run_whole_nodes_beside_idle_ones() -> None:
    found = plan("llama-3.1-8b", gpus="8xTPU-v5p,8xH100")
    assert found.mixing is not None
    assert dict(found.mixing.frameworks)["megatron"] == ""
    written = export(found.best)
    assert "--nproc_per_node 8 --nnodes 1\n" in dict(written.files)["train.sh"]
    assert "start it on node 0 of H100 alone" in written.notes[0]
