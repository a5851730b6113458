"""Formats by role: bytes per parameter as the papers and frameworks count them, and what cannot stand together."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.errors import InputError, UnsupportedError
from meshwright.library.devices import device
from meshwright.specs.dtypes import stored_bytes
from meshwright.specs.precision import PRECISIONS, ROLES, precision, stated
from meshwright.strategies.data import ShardingColumns, state_bytes


def bytes_per_parameter(name: str, *, zero: int = 0, shards: int = 1, fsdp: bool = False, **given: str) -> float:
    """What one rank keeps of a parameter with Adam."""
    one = np.ones(1, dtype=np.int64)
    sharding = ShardingColumns(
        zero=zero * one,
        fsdp=np.array([fsdp]),
        reshard=np.array([True]),
        shard=shards * one,
        replicate=one,
        expert_shard=shards * one,
        expert_replicate=one,
        overlap=np.array([True]),
        offload_optimizer=np.zeros(1),
    )
    recipe = stated(precision(name), given) if given else precision(name)
    return float(state_bytes(sharding, sharding.shard, recipe, "adam", training=True).total[0])


def test_recipes_keep_the_bytes_that_frameworks_state() -> None:
    """Megatron-LM: 18 in bf16, 20 in fp16, 16 in fp32; 20 with two 8-bit copies of the weights."""
    counted = {name: bytes_per_parameter(name) for name in PRECISIONS}
    assert counted["bf16"] == counted["int8"] == 18
    assert counted["fp16"] == counted["fp8"] == counted["nvfp4"] == 20
    assert counted["fp32"] == counted["tf32"] == 16
    assert counted["mxfp8"] == 18 + 2 * (1 + 1 / 32)
    assert counted["fp8-block"] == 18 + 2 * (1 + 4 / 128)


def test_devices_that_read_operands_in_any_order_keep_no_transposed_copy() -> None:
    """Transformer Engine keeps one layout of per-tensor fp8 weights from compute capability 10.0 on."""

    def kept(name: str, *, any_order: bool) -> float:
        alone = stated(precision(name), {"weight_dtype": "fp8"})
        return alone.bytes_of("weights") + alone.cached_bytes(any_order=any_order)

    assert (kept("fp8", any_order=False), kept("fp8", any_order=True)) == (2, 1)
    assert kept("mxfp8", any_order=True) == kept("mxfp8", any_order=False)
    assert PRECISIONS["fp8"].cached_bytes(any_order=True) == 2
    for name, any_order in (("B200", True), ("GB300", True), ("H100", False), ("RTX-5090", False)):
        assert device(name).any_operand_order is any_order


def test_fp16_with_sums_in_fp32_needs_no_second_copy_of_the_gradients() -> None:
    assert bytes_per_parameter("fp16", grad_dtype="fp32") == 18
    assert bytes_per_parameter("fp16", grad_dtype="fp16") == 16


def test_deepseek_v3_keeps_13_bytes_per_parameter() -> None:
    """8-bit weights, fp32 gradients and main copy, bf16 moments (arXiv 2412.19437, section 3.3.1); and a scale."""
    found = bytes_per_parameter("fp8-block", weight_dtype="fp8", moment_dtype="bf16")
    assert found == pytest.approx(13, abs=4 / 128)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"moment_dtype": "bf16"}, 14),
        ({"moment_dtype": "bf16", "grad_dtype": "bf16"}, 12),
        ({"grad_dtype": "bf16"}, 16),
        ({"main_copy": "none"}, 14),
        ({"main_copy": "none", "grad_dtype": "bf16", "moment_dtype": "bf16"}, 8),
        ({"main_copy": "bf16", "grad_dtype": "bf16", "moment_dtype": "bf16"}, 8),
        ({"moment_dtype": "fp8", "main_copy": "fp16", "grad_dtype": "bf16"}, 8),
    ],
)
def test_each_role_changes_its_own_bytes(given: dict[str, str], wanted: float) -> None:
    """Precision-aware optimizers: 2 weights + gradients + main copy + two moments."""
    assert bytes_per_parameter("bf16", **given) == wanted


@pytest.mark.parametrize(("shards", "wanted"), [(1, 18), (4, 9), (12, 7), (64, 6.1875)])
def test_a_sharded_optimizer_keeps_6_and_12_over_d(shards: int, wanted: float) -> None:
    """Megatron-LM, distributed optimizer: 6 + 12/d in bf16."""
    assert bytes_per_parameter("bf16", zero=1, shards=shards) == wanted


def test_fsdp_without_a_main_copy_shards_the_16_bit_weights_themselves() -> None:
    assert bytes_per_parameter("bf16", zero=3, shards=8, fsdp=True) == 2
    assert bytes_per_parameter("bf16", zero=3, shards=8, fsdp=True, main_copy="none", moment_dtype="bf16") == 1


def test_weights_in_8_bits_alone_stand_once_more_only_where_products_need_a_second_layout() -> None:
    """TransformerEngine issue 1880: two bytes on Hopper, transposed, and in mxfp8, scales of rows and of columns."""
    kept = {name: stated(precision(name), {"weight_dtype": "fp8"}) for name in ("fp8", "fp8-block", "mxfp8")}
    weights = {name: recipe.bytes_of("weights") + recipe.weight_cache_bytes for name, recipe in kept.items()}
    assert weights == {"fp8": 2.0, "fp8-block": 1 + 4 / 128, "mxfp8": 2 * (1 + 1 / 32)}
    assert kept["fp8"].gathered_bytes == 1


def test_gradients_are_sent_as_they_are_summed_unless_said_otherwise() -> None:
    bf16 = precision("bf16")
    assert stated(bf16, {"grad_dtype": "bf16"}).reduce == "bf16"
    apart = stated(bf16, {"grad_dtype": "fp32", "reduce_dtype": "bf16"})
    assert (apart.gradients, apart.reduce) == ("fp32", "bf16")
    assert stated(bf16, {"gather_dtype": "int8"}).gathered_bytes == 1
    assert stated(bf16, {"dispatch_dtype": "fp8"}).dispatched_bytes == 1 + 4 / 128


def test_what_was_stated_names_the_recipe() -> None:
    found = stated(precision("bf16"), {"grad_dtype": "bf16", "main_copy": "none"})
    assert found.name == "bf16 grad=bf16 main=none"


def test_block_formats_carry_a_scale_per_block() -> None:
    assert stored_bytes("mxfp8") == 33 / 32
    assert stored_bytes("nvfp4") == 0.5 + 1 / 16
    assert precision("mxfp8").input_bytes == 33 / 32
    assert precision("fp8").input_bytes == 1
    assert precision("bf16").input_bytes == 2


def test_formats_that_cannot_stand_together_are_refused() -> None:
    with pytest.raises(InputError, match="read by products in 8 bits"):
        stated(precision("bf16"), {"weight_dtype": "fp8"})
    with pytest.raises(InputError, match="weights would not move"):
        stated(precision("fp8"), {"weight_dtype": "fp8", "main_copy": "none"})
    with pytest.raises(InputError, match="grad_dtype is 'fp9'") as caught:
        stated(precision("bf16"), {"grad_dtype": "fp9", "moment_dtype": "int2"})
    assert {problem.field for problem in caught.value.problems} == {"grad_dtype", "moment_dtype"}
    with pytest.raises(UnsupportedError, match="unknown dtype"):
        precision("fp12")


@pytest.mark.parametrize("name", ROLES)
def test_every_format_that_a_role_offers_can_be_stated(name: str) -> None:
    for dtype in ROLES[name].formats:
        # Weights that are trained are in fp32 alone where everything is.
        recipe = precision("fp32" if (name, dtype) == ("weight_dtype", "fp32") else "fp8-block")
        assert stated(recipe, {name: dtype}) != recipe
