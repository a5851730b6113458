"""Bytes kept from forward to backward: published figures of GPT-3 and Llama layers, under every way to save them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.library.models import spec
from meshwright.ops.layers import layer_work
from meshwright.specs.precision import precision
from meshwright.specs.strategy import Recompute
from meshwright.strategies.memory import kept_bytes
from tests.strategies.columns import MIB, columns

NONE, FULL = Recompute(), Recompute(kind="full")
SELECTIVE = Recompute(kind="selective", modules=("core_attn",))
BF16 = precision("bf16")


def gpt3_mib(*, tp: int = 1, sp: bool = False, recompute: Recompute = NONE) -> float:
    """A GPT-3 layer with dropout and materialised scores: s = 2048, b = 1, h = 12288, a = 96."""
    (kind,) = spec("gpt3-175b").kinds()
    work = layer_work(replace(kind, dropout=True), 12288, "materialised")
    return float(kept_bytes(work, columns(tp=tp, sp=sp, seq_len=2048), BF16, recompute)[0]) / MIB


@pytest.mark.parametrize(
    ("how", "mib"),
    [
        ({}, 2736),
        ({"tp": 8}, 552),
        ({"tp": 8, "sp": True}, 342),
        ({"tp": 8, "recompute": SELECTIVE}, 312),
        ({"tp": 8, "sp": True, "recompute": SELECTIVE}, 102),
        ({"recompute": FULL}, 48),
        ({"tp": 8, "recompute": FULL}, 48),
        ({"tp": 8, "sp": True, "recompute": FULL}, 6),
        ({"recompute": Recompute(kind="grouped", group=4)}, 12),
    ],
)
def test_gpt3_layer(how: dict[str, object], mib: float) -> None:
    """Korthikanti et al. 2022, table 2, in MiB."""
    assert gpt3_mib(**how) == mib


@pytest.mark.parametrize(
    ("name", "how", "mib"), [("llama-3-8b", {}, 1089), ("llama-3-70b", {"tp": 8, "sp": True}, 268.25)]
)
def test_llama_layer(name: str, how: dict[str, int], mib: float) -> None:
    model = spec(name)
    work = layer_work(model.last_layer(), model.hidden, "flash")
    assert float(kept_bytes(work, columns(seq_len=8192, **how), BF16, NONE)[0]) / MIB == mib


def test_context_ranks_keep_their_share() -> None:
    model = spec("llama-3-8b")
    work = layer_work(model.last_layer(), model.hidden, "flash")
    whole = kept_bytes(work, columns(), BF16, NONE)[0]
    for how in ({"p2p": 4}, {"a2a": 4}, {"ag": 4}, {"a2a": 2, "p2p": 2}):
        assert kept_bytes(work, columns(**how), BF16, NONE)[0] == whole / 4


def test_fp8_keeps_the_inputs_of_products_in_one_byte() -> None:
    model = spec("llama-3-8b")
    work = layer_work(model.last_layer(), model.hidden, "flash")
    saved = kept_bytes(work, columns(), BF16, NONE) - kept_bytes(work, columns(), precision("fp8"), NONE)
    inputs = 2 * 4096 + 4096 + 14336  # qkv and MLP inputs, attention output, product of gate and up
    assert float(saved[0]) == 4096 * inputs


@pytest.mark.parametrize(
    ("module", "saved_per_token"),
    [
        ("core_attn", 4 * 32),
        ("mlp", 2 * 3 * 14336),
        ("layernorm", 2 * 2 * 4096),
        ("moe", 0),
        ("mla_up_proj", 0),
    ],
)
def test_selective_recompute_frees_its_module_only(module: str, saved_per_token: int) -> None:
    model = spec("llama-3-8b")
    work = layer_work(model.last_layer(), model.hidden, "flash")
    some = kept_bytes(work, columns(), BF16, Recompute(kind="selective", modules=(module,)))
    assert float((kept_bytes(work, columns(), BF16, NONE) - some)[0]) == 4096 * saved_per_token


def test_repeating_the_experts_repeats_their_activation() -> None:
    model = spec("deepseek-v3")
    work = layer_work(model.last_layer(), model.hidden, "flash")

    def kept(*modules: str) -> float:
        recompute = Recompute(kind="selective", modules=modules) if modules else NONE
        return float(kept_bytes(work, columns(), BF16, recompute)[0])

    assert kept() - kept("moe_act") == 4096 * 8 * 2 * 2048
    assert kept("moe") == kept("moe", "moe_act") < kept("moe_act") < kept()
    assert kept() - kept("shared_experts") == 4096 * 2 * 3 * 2048


degrees = st.sampled_from([1, 2, 4, 8])


@given(
    name=st.sampled_from(["llama-3-8b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3", "falcon-7b"]),
    tp=degrees,
    sp=st.booleans(),
    cp=degrees,
    mbs=st.integers(1, 4),
    kernel=st.sampled_from(["flash", "materialised"]),
)
def test_more_recompute_keeps_less_and_tokens_scale(
    name: str, tp: int, sp: bool, cp: int, mbs: int, kernel: str
) -> None:
    model = spec(name)
    work = layer_work(model.last_layer(), model.hidden, kernel)

    def kept(recompute: Recompute, sequences: int = mbs) -> float:
        return float(kept_bytes(work, columns(tp=tp, sp=sp, p2p=cp, mbs=sequences), BF16, recompute)[0])

    everything = ("core_attn", "mlp", "moe", "layernorm", "mla_up_proj", "shared_experts")
    most = Recompute(kind="selective", modules=everything)
    grouped = Recompute(kind="grouped", group=4)
    assert kept(grouped) < kept(FULL) <= kept(most) <= kept(SELECTIVE) < kept(NONE)
    assert kept(NONE, 2 * mbs) == pytest.approx(2 * kept(NONE), rel=1e-12)
