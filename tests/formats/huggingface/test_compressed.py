"""DeepSeek-V4: windows, entries that stand for several tokens, picked or not, and four residual streams."""

from __future__ import annotations

import pytest

from meshwright.errors import InputError
from meshwright.formats.huggingface import read_config
from meshwright.specs.layers.compressed_attention import CompressedAttention

FLASH = {
    "model_type": "deepseek_v4",
    "hidden_size": 4096,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "vocab_size": 129280,
    "max_position_embeddings": 1048576,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "num_nextn_predict_layers": 1,
    "num_hash_layers": 3,
    "q_lora_rank": 1024,
    "o_lora_rank": 1024,
    "o_groups": 8,
    "qk_rope_head_dim": 64,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 512,
    "sliding_window": 128,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
    "scoring_func": "sqrtsoftplus",
}
"""Facts of deepseek-ai/DeepSeek-V4-Flash, config.json on Hugging Face."""


def test_flash_has_284_billion_parameters_of_which_13_work_on_a_token() -> None:
    model = read_config(FLASH, "deepseek-v4-flash")
    assert model.parameters == pytest.approx(284e9, rel=2e-3)
    assert model.active_parameters - 2 * 4096 * 129280 == pytest.approx(13e9, rel=0.03)
    assert [len(run.layers) * run.repeats for run in model.runs] != []
    assert model.residuals == 4


def test_the_last_rate_is_that_of_the_module_for_one_more_token() -> None:
    model = read_config(FLASH, "deepseek-v4-flash")
    seen = [layer.attention for layer in (*model.layers(), model.mtp_kind)]
    assert [one.rate for one in seen if isinstance(one, CompressedAttention)] == FLASH["compress_ratios"]
    assert all((one.indexer is not None) == (one.rate == 4) for one in seen if isinstance(one, CompressedAttention))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"compress_ratios": [4, 128]}, "compress_ratios"),
        ({"compress_ratios": [0.5] * 43}, "compress_ratios"),
        ({"num_key_value_heads": 8}, "one head of keys"),
        ({"o_groups": 7}, "must divide the 64 attention heads"),
        ({"o_lora_rank": None}, "o_lora_rank"),
    ],
)
def test_what_contradicts_itself_is_named(change: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_config(FLASH | change, "m")
