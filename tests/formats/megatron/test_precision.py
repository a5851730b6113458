"""Number formats as options, and back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.errors import UnsupportedError
from meshwright.formats.megatron import megatron_script
from meshwright.formats.megatron.read import MegatronFlags, read_flags
from meshwright.schedules.plan_rows import plan_of
from meshwright.specs import PlanRow
from meshwright.specs.precision import EIGHT_BIT, PRECISIONS, Precision, stated
from tests.formats.jobs import job

UNSAID = ("int8", "tf32")
"""Recipes that no option asks for."""


def through_flags(recipe: Precision) -> MegatronFlags:
    """Written into a script and read back."""
    made = job(plan_of(PlanRow(dp=2, sharding="z1", gbs=2), [4]))
    made = replace(made, workload=replace(made.workload, precision=recipe))
    return read_flags(megatron_script(made).text)


@pytest.mark.parametrize("name", sorted(set(PRECISIONS) - set(UNSAID)))
def test_every_recipe_survives_its_flags(name: str) -> None:
    for changed in ({}, {"moments": "bf16"}):
        recipe = replace(PRECISIONS[name], **changed)
        read = through_flags(recipe)
        assert read.problems == ()
        assert read.workload["precision"] == recipe


@pytest.mark.parametrize("name", EIGHT_BIT)
def test_weights_in_8_bits_alone_are_gathered_and_counted_once(name: str) -> None:
    recipe = stated(PRECISIONS[name], {"weight_dtype": "fp8"})
    read = through_flags(recipe).workload["precision"]
    assert read == recipe
    assert read.weights == name


def test_gradients_and_dispatch_of_scripts_are_read() -> None:
    recipe = replace(PRECISIONS["mxfp8"], gradients="bf16", reduce="bf16", dispatched="mxfp8", moments="fp8")
    assert through_flags(recipe).workload["precision"] == recipe
    words = ["--bf16", "--use-precision-aware-optimizer", "--main-grads-dtype", "bf16", "--exp-avg-dtype", "bf16"]
    read = read_flags([*words, "--exp-avg-sq-dtype", "bf16", "--main-params-dtype", "fp16"], devices=1)
    found = read.workload["precision"]
    assert (found.gradients, found.moments, found.master) == ("bf16", "bf16", "fp16")


@pytest.mark.parametrize(
    ("recipe", "what"),
    [
        (PRECISIONS["int8"], "products in int8"),
        (PRECISIONS["tf32"], "products in tf32"),
        (stated(PRECISIONS["bf16"], {"main_copy": "none"}), "no main copies"),
        (stated(PRECISIONS["fp8"], {"gather_dtype": "fp8"}), "weights on the network in fp8"),
        (stated(PRECISIONS["bf16"], {"dispatch_dtype": "fp8"}), "tokens sent to experts in fp8-block"),
        (stated(PRECISIONS["bf16"], {"reduce_dtype": "int8"}), "gradients in fp32"),
    ],
)
def test_formats_that_no_option_asks_for_are_refused(recipe: Precision, what: str) -> None:
    with pytest.raises(UnsupportedError, match=what):
        through_flags(recipe)


def test_one_way_to_experts_alone_is_a_problem() -> None:
    read = read_flags(["--bf16", "--moe-dispatch-fwd-dtype", "mxfp8"], devices=1)
    assert "expert dispatch in mxfp8 in one direction only" in [problem.what for problem in read.problems]


def test_first_and_last_layers_in_16_bits_are_written_and_read() -> None:
    made = job(plan_of(PlanRow(dp=2, sharding="z1", gbs=2), [4]))
    workload = replace(made.workload, precision=PRECISIONS["fp8"])
    made = replace(made, model=made.model.with_wide_ends(2, 1), workload=workload)
    read = read_flags(megatron_script(made).text)
    assert (read.workload["bf16_first"], read.workload["bf16_last"], read.problems) == (2, 1, ())
    flag = "--first-last-layers-bf16"
    assert read_flags(["--bf16", "--fp8-format", "hybrid", flag], devices=1).workload["bf16_last"] == 1
    assert flag in [problem.field for problem in read_flags(["--bf16", flag], devices=1).problems]


def test_weights_of_a_script_are_counted_once() -> None:
    """As NVIDIA's Llama-3-8B example trains: no 16-bit copy beside 8-bit weights, which Hopper reads in two layouts."""
    words = ["--bf16", "--fp8-format", "hybrid", "--fp8-param-gather", "--grad-reduce-in-bf16"]
    found = read_flags(words, devices=8).workload["precision"]
    assert found.bytes_of("weights") + found.weight_cache_bytes == 2
    assert (found.gradients, found.reduce, found.gathered_bytes) == ("bf16", "bf16", 1)
