"""What our list says one rank does, against counts by hand; and what the verb refuses."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.errors import InputError
from meshwright.fields.job import JobFields
from meshwright.planning.plan_source import plan_question
from meshwright.specs.job import Job
from meshwright.xray.ours import FORMS, OperatorForm, rank_work

LAYERS, HIDDEN, FFN, HEADS, KV, DIM = 32, 4096, 14336, 32, 8, 128
SEQUENCE = 8192


def job(plan: str, gpus: str = "16xH100", software: str | None = None) -> Job:
    return plan_question(plan, JobFields(model="llama-3.1-8b", gpus=gpus, seq_len=SEQUENCE, software=software)).job


def test_a_layer_has_four_products_forward_and_eight_backward() -> None:
    found = rank_work(job("tp2.pp2.dp4.z1.mbs1.gbs64"), 0, 3).gemms
    layers = job("tp2.pp2.dp4.z1.mbs1.gbs64").plan.pipelines[0].workers[0].chunks[0].num_layers
    assert found[("forward", 1, (HEADS + 2 * KV) * DIM // 2, SEQUENCE, HIDDEN)] == 3 * layers
    assert sum(count for key, count in found.items() if key[0] == "forward") == 3 * 4 * layers
    assert sum(count for key, count in found.items() if key[0] == "backward") == 3 * 8 * layers


def test_a_full_recompute_makes_every_product_again() -> None:
    found = rank_work(job("tp2.pp2.dp4.z1.mbs1.gbs64.rc-full"), 0, 1).gemms
    forward = {key[1:]: count for key, count in found.items() if key[0] == "forward"}
    assert {key[1:]: count for key, count in found.items() if key[0] == "recompute"} == forward


def test_a_checkpoint_that_stops_makes_all_but_the_last_product_of_a_layer_again() -> None:
    found = rank_work(job("tp2.pp2.dp4.z1.mbs1.gbs64.rc-full", software="pytorch-compiled"), 0, 1).gemms
    forward = {key[1:]: count for key, count in found.items() if key[0] == "forward"}
    again = {key[1:]: count for key, count in found.items() if key[0] == "recompute"}
    assert set(forward) - set(again) == {(1, HIDDEN, SEQUENCE, FFN // 2)}


def test_parameters_of_all_ranks_are_the_models() -> None:
    asked = job("tp2.pp2.dp4.z1.mbs1.gbs64")
    norms = (2 * LAYERS + 1) * HIDDEN
    held = sum(rank_work(asked, stage, 1).dense for stage in (0, 1))
    assert 2 * held - norms == asked.model.parameters


def test_a_form_says_how_a_framework_runs_the_same() -> None:
    asked = job("tp2.dp8.fsdp.mbs1.gbs64")
    plain, apart = (rank_work(asked, 0, 1, form) for form in (OperatorForm(), FORMS["torchtitan"]))

    def flop(work):
        return sum(count * g * m * n * k for (_, g, m, n, k), count in work.gemms.items())

    assert flop(plain) == flop(apart)
    gathers = [
        sum(c for key, c in work.collectives.items() if key[:2] == ("all_gather", "tp")) for work in (plain, apart)
    ]
    assert gathers[0] - gathers[1] == 2 * LAYERS + 1  # of the inputs of products cut by columns


def test_megatron_pads_the_vocabulary() -> None:
    asked = job("tp8.pp1.dp2.z1.mbs1.gbs64")
    padded = rank_work(asked, 0, 1, FORMS["megatron"]).gemms
    assert ("forward", 1, SEQUENCE, 16128, HIDDEN) in padded or ("forward", 1, 8192, 16128, HIDDEN) in padded


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"stage": 7}, "stage 7 is asked for"),
        ({"rank": 99}, "rank 99 is asked for"),
        ({"stage": 0, "rank": 0}, "both --stage and --rank"),
        ({"framework": "jax"}, "framework"),
        ({"python": "/no/such/python"}, "does not start"),
    ],
)
def test_what_cannot_be_run_is_said_before_it_is(more: dict[str, object], what: str) -> None:
    with pytest.raises(InputError) as caught:
        mw.xray("llama-3.1-8b", plan="tp2.pp2.dp4.z1.mbs1.gbs64", cluster="16xH100", **more)
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("plan", "sums"),
    [
        ("tp2.pp1.dp8.z1.mbs1.gbs64", {(3 * 4, 4 * SEQUENCE), (1, 4 * (2 * LAYERS + 1) * HIDDEN)}),
        ("tp2.nosp.pp1.dp8.z1.mbs1.gbs64", {(3 * 4, 4 * SEQUENCE)}),
        ("tp1.pp1.dp16.z1.mbs1.gbs64", set()),
    ],
)
def test_small_sums_of_megatron_are_counted_and_said_not_to_be_priced(plan: str, sums: set[tuple[int, int]]) -> None:
    found = rank_work(job(plan), 0, 4, FORMS["megatron"])
    assert {(found.collectives[key], key[4]) for key in found.unpriced} == sums
    assert not rank_work(job(plan), 0, 4).unpriced
