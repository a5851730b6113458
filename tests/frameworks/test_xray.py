"""One rank of the frameworks themselves beside our operator list: products and collectives one by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright.errors import UnsupportedError
from meshwright.xray.start import traced

DENSE = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
MOE = {
    **DENSE,
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
SMALL = 1 << 17
"""Collectives below so many bytes are of counts of tokens and their probabilities: our list leaves them out."""


def of(config: dict[str, Any], folder: Path, plan: str, gpus: str = "8xH100", **more: Any) -> Any:
    (folder / "config.json").write_text(json.dumps(config))
    return mw.xray(str(folder / "config.json"), plan=plan, cluster=gpus, seq_len=256, **more)


def large(answer: Any) -> list[Any]:
    return [row for row in answer.collectives if row.payload_bytes > SMALL or row.ours]


@pytest.mark.parametrize(
    ("plan", "stage"),
    [
        ("tp2.pp2.dp2.z1.mbs2.gbs16.rc-full", 1),
        ("tp2.nosp.pp2.vpp2.dp2.z0.mbs2.gbs16.rc-sel", 0),
        ("tp4.cp2.dp1.z1.mbs2.gbs4", 0),
    ],
)
def test_a_rank_of_megatron_is_as_in_our_list(plan: str, stage: int, tmp_path: Path) -> None:
    pytest.importorskip("megatron.core")
    seen = of(DENSE, tmp_path, plan, stage=stage, framework="megatron")
    assert [row for row in seen.products if not row.same] == []
    assert [row for row in seen.collectives if not row.same and row.group not in ("pp", "cp")] == []
    assert any("transformer_engine" in name for name in seen.traced.substitutes)
    assert seen.traced.peak.name == "forward and backward"
    for row in seen.memory:
        if row.kind in ("weights", "gradients", "optimizer"):
            assert row.seen_bytes == pytest.approx(row.ours_bytes, rel=0.02)


def test_layers_of_mamba_are_refused_and_not_run_as_those_of_gpt() -> None:
    pytest.importorskip("megatron.core")
    asked = {"framework": "megatron", "rank": 0, "world": 1, "vocab": 8, "micro_batches": 1}
    with pytest.raises(UnsupportedError, match="layers of Mamba need kernels of a GPU"):
        traced(asked | {"options": {"--hybrid-override-pattern": "M-"}})


def test_attention_that_is_not_fused_keeps_its_scores(tmp_path: Path) -> None:
    """Megatron-Core makes its masks on a device by name; sequence parallelism without tensor ranks is left out."""
    pytest.importorskip("megatron.core")
    plan = "dp8.z1.mbs2.gbs16"
    unfused, fused = (
        of(DENSE, tmp_path, plan, framework="megatron", attention_kernel=kernel) for kernel in ("materialised", "flash")
    )
    assert not any("core attention" in name for name in unfused.traced.substitutes)
    scores = 2 * 8 * 256 * 256 * 2 * 4  # micro-batch, heads, keys, queries, bytes, layers
    assert unfused.traced.peak.live_bytes > fused.traced.peak.live_bytes + scores


def test_experts_of_megatron_are_as_in_our_list(tmp_path: Path) -> None:
    pytest.importorskip("megatron.core")
    seen = of(MOE, tmp_path, "tp2.ep2.dp4.z1.mbs4.gbs16", framework="megatron")
    grouped = [row for row in seen.products if row.groups > 1]
    assert grouped
    assert all(row.same for row in grouped)
    exchanged = [row for row in large(seen) if row.kind == "all_to_all"]
    assert exchanged
    assert all(row.same for row in exchanged)


def test_a_rank_of_torchtitan_is_as_in_our_list() -> None:
    pytest.importorskip("torchtitan.trainer", exc_type=ImportError)
    plan = "tp2.dp4.fsdp.mbs1.gbs4.rc-full"
    seen = mw.xray("llama-3.2-1b", plan=plan, cluster="8xH100", seq_len=1024, framework="torchtitan")
    assert [row for row in seen.products if not row.same] == []
    assert [row for row in large(seen) if row.group == "tp" and not row.same] == []
    # Whole weights of a layer are there while it runs, and no longer.
    traced, ours = (sum(getattr(row, name) for row in seen.memory) for name in ("seen_bytes", "ours_bytes"))
    assert traced == pytest.approx(ours, rel=0.05)


def test_a_class_of_transformers_is_as_in_our_list(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    seen = of(DENSE, tmp_path, "dp1.z0.mbs2.gbs2", "1xH100", framework="module")
    assert [row for row in seen.products if not row.same] == []
    assert seen.collectives == ()


LOGITS = """#!/bin/bash
torchrun --nproc_per_node 2 pretrain_gpt.py --num-layers 4 --hidden-size 512 --ffn-hidden-size 1536 \\
  --num-attention-heads 8 --normalization RMSNorm --swiglu --disable-bias-linear --vocab-size 32000 --bf16 \\
  --untie-embeddings-and-output-weights --position-embedding-type rope --hidden-dropout 0.0 --attention-dropout 0.0 \\
  --tensor-model-parallel-size 2 --sequence-parallel --micro-batch-size 2 --global-batch-size 4 --seq-length 2048 \\
  --max-position-embeddings 2048 --use-distributed-optimizer {more}
"""


@pytest.mark.parametrize("more", ["", "--cross-entropy-loss-fusion"])
def test_a_small_model_with_a_large_vocabulary_is_as_in_our_list(more: str, tmp_path: Path) -> None:
    """Logits of 16 bits go before the backward pass: they are transient in both."""
    pytest.importorskip("megatron.core")
    (tmp_path / "train.sh").write_text(LOGITS.format(more=more))
    seen = mw.xray(source=tmp_path / "train.sh", cluster="2xH100")
    assert [row for row in seen.collectives if not row.same] == []
    sums = [row.seen for row in seen.collectives if row.unpriced.startswith("sums")]
    assert sums == ([2, 2] if more else [6])
    for row in seen.memory:
        assert row.seen_bytes == pytest.approx(row.ours_bytes, rel=0.05)
