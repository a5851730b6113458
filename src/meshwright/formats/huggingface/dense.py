"""Families of RMSNorm and a gated MLP, as Llama has them: each says where it differs."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.formats.huggingface.family import Family
from meshwright.formats.huggingface.fields import Fields

_GEMMA = {"head_dim": 256, "tie_word_embeddings": True}
_POST_NORMS = {"norms": 4}

llama = Family(title="Llama 1 to 3.3, Yi, TinyLlama and others of its layers", required=())
mistral = Family(title="Mistral", defaults={"sliding_window": 4096}, fixed={"slides": "all"})
ministral3 = Family(title="Ministral 3", fixed={"slides": "all"})
ministral = Family(title="Ministral")


def _qwen(fields: Fields) -> Mapping[str, object]:
    """Qwen: `intermediate_size` counts gate and up projection together."""
    return {"intermediate_size": fields.whole("intermediate_size", low=2) // 2}


qwen = Family(
    title="Qwen 1",
    source="configuration and modelling files of Qwen/Qwen-7B on Hugging Face",
    spells={"max_position_embeddings": ("max_position_embeddings", "seq_length")},
    fixed={"qkv_bias": True, "out_bias": False, "mlp_bias": False, "multi_head": True},
    required=(),
    dropouts=("attn_dropout_prob", "emb_dropout_prob"),
    rule=_qwen,
)
qwen2 = Family(
    title="Qwen 1.5, 2 and 2.5",
    defaults={"use_sliding_window": False, "sliding_window": 4096},
    fixed={"qkv_bias": True, "out_bias": False, "slides": "from max_window_layers"},
)
qwen3 = Family(
    title="Qwen 3",
    defaults={"head_dim": 128, "use_sliding_window": False, "sliding_window": 4096},
    fixed={"qk_norm": "head", "slides": "from max_window_layers"},
)
gemma = Family(title="Gemma 1", defaults=_GEMMA)
gemma2 = Family(
    title="Gemma 2",
    defaults={**_GEMMA, "sliding_window": 4096, "attn_logit_softcapping": 50.0},
    fixed={**_POST_NORMS, "slides": "even"},
)
# Published configs of Gemma 3 leave out what equals the defaults of `Gemma3TextConfig`.
gemma3 = Family(
    title="Gemma 3",
    defaults={
        **_GEMMA,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
    },
    fixed={**_POST_NORMS, "qk_norm": "head", "slides": "but every n-th"},
)


def _gemma4(fields: Fields) -> Mapping[str, object]:
    """Experts stand beside a dense MLP in every layer, as if it were their shared one."""
    if not fields.flag("enable_moe_block", default=False):
        return {"num_experts": 0}
    return {"shared_expert_intermediate_size": fields.whole("intermediate_size"), "expert_width_stated": True}


_PER_LAYER = {"hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262_144}
gemma4 = Family(
    title="Gemma 4",
    defaults={**_GEMMA, **_PER_LAYER, "global_head_dim": 512, "sliding_window": 512, "sliding_window_pattern": 6},
    fixed={**_POST_NORMS, "qk_norm": "head", "slides": "but every n-th", "gated_mlp": True},
    rule=_gemma4,
)
gemma4_unified = Family(
    title="Gemma 4 without towers",
    defaults={**_GEMMA, "global_head_dim": 512, "sliding_window": 1024, "sliding_window_pattern": 6},
    fixed=gemma4.fixed,
)


def _gemma3n(fields: Fields) -> Mapping[str, object]:
    """Layers of a sparse activation have the matrices of the others: only statistics of it are computed besides."""
    fields.has("activation_sparsity_pattern", "altup_active_idx", "altup_coef_clip", "altup_correct_scale")
    fields.remark("the statistics by which activations are made sparse are not counted")
    return {}


# Published configs leave out what equals the defaults of `Gemma3nTextConfig`.
gemma3n = Family(
    title="Gemma 3n",
    defaults={
        **_GEMMA,
        **_PER_LAYER,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 262_400,
        "max_position_embeddings": 32_768,
        "sliding_window": 512,
        "sliding_window_pattern": 5,
        "num_kv_shared_layers": 15,
        "altup_num_inputs": 4,
        "laurel_rank": 64,
    },
    fixed={**_POST_NORMS, "qk_norm": "head", "slides": "but every n-th", "gated_mlp": True},
    rule=_gemma3n,
)
muse_glimmer = Family(
    title="Muse Glimmer",
    defaults={"sliding_window": 2048},
    fixed={"norms": 4, "output_gate": True},
)
vaultgemma = Family(
    title="VaultGemma", defaults={**_GEMMA, "sliding_window": 4096}, fixed={"slides": "even", "norms": 2}
)
phi3 = Family(
    title="Phi-3 and Phi-4",
    fixed={"slides": "all"},
    required=(),
    dropouts=("attention_dropout", "resid_pdrop", "embd_pdrop"),
)


def _phi4_multimodal(fields: Fields) -> Mapping[str, object]:
    """Adapters of images and of speech lie beside the matrices of its text."""
    fields.has("vision_lora", "speech_lora", "audio_processor", "img_processor", "embd_layer")
    fields.remark("the adapters that images and speech pass in its text are left out")
    return {}


phi4_multimodal = Family(
    title="Phi-4-multimodal",
    fixed={"slides": "all"},
    required=(),
    dropouts=("attention_dropout", "resid_pdrop", "embd_pdrop"),
    rule=_phi4_multimodal,
)


def _bare_norms(fields: Fields) -> Mapping[str, object]:
    """Norms that have no weights, which are counted as if they had."""
    extra = (2 * fields.whole("num_hidden_layers") + 1) * fields.whole("hidden_size")
    fields.remark(f"the norms of this family have no weights: {extra:,} parameters more than it has are counted")
    return {}


olmo = Family(title="OLMo 1", required=(), rule=_bare_norms)
olmo2 = Family(title="OLMo 2", fixed={"qk_norm": "all"}, required=())
olmo3 = Family(
    title="OLMo 3",
    defaults={"sliding_window": 4096, "sliding_window_pattern": 4},
    fixed={"qk_norm": "all", "slides": "but every n-th"},
    required=(),
)
eurobert = Family(title="EuroBERT", fixed={"bidirectional": True}, required=())
_DIFFUSES = {"bidirectional": True, "lm_head": True}
"""Diffusion language models fill in masked tokens anywhere: all tokens see all others."""
dream = Family(
    title="Dream",
    source="configuration and modelling files of Dream-org/Dream-v0-Base-7B on Hugging Face",
    defaults={"use_sliding_window": False},
    fixed={**_DIFFUSES, "qkv_bias": True, "out_bias": False, "slides": "from max_window_layers"},
)


def _llada(fields: Fields) -> Mapping[str, object]:
    """OLMo 1's words for the layers of Llama."""
    block, norm = fields.raw("block_type"), fields.raw("layer_norm_type")
    if block not in (None, "llama"):
        fields.refuse("block_type", block, "only blocks of Llama, whose MLPs have a gate, can be planned")
    if norm not in (None, "rms"):
        fields.refuse("layer_norm_type", norm, "only rms can be planned")
    for key in ("attention_layer_norm", "alibi", "input_emb_norm", "bias_for_layer_norm"):
        if fields.flag(key, default=False):
            fields.refuse(key, True, "it is false in every published model of the family")
    fields.has("mlp_ratio", "block_group_size", "alibi_bias_max", "rope_full_precision", "precision", "activation_type")
    fields.has("layer_norm_with_affine", "attention_layer_norm_with_affine", "include_qkv_bias", "vocab_size")
    bias = fields.flag("include_bias", default=False)
    return {
        "qkv_bias": bias or fields.flag("include_qkv_bias", default=False),
        "out_bias": bias,
        "mlp_bias": bias,
        **({"multi_query": True} if fields.flag("multi_query_attention", default=False) else {}),
    }


llada = Family(
    title="LLaDA",
    source="configuration and modelling files of GSAI-ML/LLaDA-8B-Base on Hugging Face",
    spells={
        "intermediate_size": ("mlp_hidden_size",),
        "vocab_size": ("embedding_size",),
        "tie_word_embeddings": ("weight_tying",),
    },
    fixed=_DIFFUSES,
    required=(),
    dropouts=("attention_dropout", "residual_dropout", "embedding_dropout"),
    rule=_llada,
)
smollm3 = Family(
    title="SmolLM3", defaults={"tie_word_embeddings": True, "use_sliding_window": False}, fixed={"slides": "all"}
)
granite = Family(title="Granite 3 dense", required=())
seed_oss = Family(title="Seed-OSS", defaults={"qkv_bias": True, "out_bias": False, "head_dim": 128})
internlm = Family(
    title="InternLM 1",
    source="configuration and modelling files of internlm/internlm-7b on Hugging Face",
    defaults={"bias": True},
    fixed={"mlp_bias": False},
    required=(),
)
internlm2 = Family(
    title="InternLM 2 and 2.5",
    source="configuration and modelling files of internlm/internlm2-7b on Hugging Face",
    fixed={"mlp_bias": False},
)
internlm3 = Family(
    title="InternLM 3",
    defaults={"head_dim": 128, "qkv_bias": False, "bias": False},
)
baichuan = Family(
    title="Baichuan 1 and 2",
    source="configuration and modelling files of baichuan-inc/Baichuan2-13B-Base on Hugging Face",
    fixed={"multi_head": True, "attention_bias": False},
    required=(),
)
arcee = Family(title="Arcee AFM", fixed={"gated_mlp": False}, required=())
nanochat = Family(title="nanochat", fixed={"gated_mlp": False}, required=(), rule=_bare_norms)
mimo = Family(
    title="MiMo",
    source="configuration and modelling files of XiaomiMiMo/MiMo-7B-Base on Hugging Face",
    fixed={"qkv_bias": True, "out_bias": False},
)
minicpm = Family(
    title="MiniCPM 1, 2 and MoE",
    source="configuration and modelling files of openbmb/MiniCPM-2B-sft-bf16 and MiniCPM-MoE-8x2B on Hugging Face",
    spells={"moe_intermediate_size": ("intermediate_size",)},
    defaults={"tie_word_embeddings": True},
    required=(),
)


def _glm(fields: Fields) -> Mapping[str, object]:
    """Biases of queries, keys and values where nothing is said."""
    return {"qkv_bias": fields.flag("attention_bias", default=True), "out_bias": False}


glm = Family(title="GLM-4-9B", defaults={"head_dim": 128}, rule=_glm)
glm_ocr = Family(title="GLM-OCR", fixed=_POST_NORMS, required=())
glm4 = Family(title="GLM-4-0414", defaults={"head_dim": 128}, fixed=_POST_NORMS, rule=_glm)
paddleocr_vl = Family(title="PaddleOCR-VL", defaults={"head_dim": 128, "tie_word_embeddings": True}, required=())
ernie4_5 = Family(title="ERNIE 4.5", defaults={"head_dim": 128, "tie_word_embeddings": True})
hunyuan_dense = Family(title="Hunyuan dense", fixed={"qk_norm": "head"})
exaone4 = Family(
    title="EXAONE 4",
    defaults={"sliding_window": 4096, "sliding_window_pattern": 4},
    fixed={"qk_norm": "head", "slides": "but every n-th"},
)


def _nas(fields: Fields) -> Mapping[str, object]:
    """Layers that a search chose one by one: groups of attention or none, a width of MLP or none."""
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    attention, widths, groups = [], [], []
    blocks = fields.raw("block_configs")
    for number, block in enumerate(blocks if isinstance(blocks, list) else ()):
        parts = [block.get(key) for key in ("attention", "ffn")] if isinstance(block, dict) else [None, None]
        mixer, mlp = (part if isinstance(part, dict) else {} for part in parts)
        if mixer.get("replace_with_linear") or mlp.get("replace_with_linear") or mixer.get("window_length"):
            fields.refuse("block_configs", f"layer {number}", "only layers of attention and MLPs can be planned")
        share, factor = mixer.get("n_heads_in_group") or heads, mlp.get("ffn_mult") or 0
        good = isinstance(share, int) and 0 < share <= heads and isinstance(factor, (int, float)) and 0 <= factor < 64
        if not good or not parts[0] or not parts[1]:
            fields.problem("block_configs", f"layer {number}", "must say n_heads_in_group and ffn_mult, or no_op")
            break
        attention.append("none" if mixer.get("no_op") else "full_attention")
        groups.append(max(1, heads // share))
        widths.append(0 if mlp.get("no_op") else -(-int(2 * factor * hidden / 3) // 256) * 256)
    return {"layer_types": attention, "num_key_value_heads": groups, "intermediate_size": widths}


nemotron_nas = Family(
    title="Llama-Nemotron of unequal layers",
    source="configuration file of nvidia/Llama-3_3-Nemotron-Super-49B-v1 on Hugging Face",
    required=("block_configs",),
    rule=_nas,
)
granite_swa = Family(title="Granite with windows", fixed={"sinks": True}, required=())
youtu = Family(title="Youtu-LLM", defaults={"tie_word_embeddings": True}, required=("q_lora_rank", "kv_lora_rank"))


def _inner_norms(fields: Fields) -> Mapping[str, object]:
    """Norms inside attention and MLP, before their last products, which are left out."""
    widths = fields.whole("hidden_size") + fields.whole("intermediate_size")
    left_out = fields.whole("num_hidden_layers") * widths
    fields.remark(f"norms inside attention and MLP are left out: {left_out:,} parameters fewer than it has are counted")
    return {}


bitnet = Family(title="BitNet", fixed={"gated_mlp": True}, rule=_inner_norms)
helium = Family(title="Helium", defaults={"head_dim": 128})


def _hyperclovax(fields: Fields) -> Mapping[str, object]:
    """Norms behind attention and MLP, too, unless switched off."""
    return {"norms": 4 if fields.flag("use_post_norm", default=True) else 2}


hyperclovax = Family(title="HyperCLOVA X", required=(), rule=_hyperclovax)
apertus = Family(title="Apertus", fixed={"gated_mlp": False, "qk_norm": "head"})
cohere = Family(
    title="Command-R and Aya",
    defaults={"tie_word_embeddings": True},
    # Its LayerNorm has scales and no shifts, as an RMSNorm counts and moves bytes.
    fixed={"norm": "rmsnorm", "norms": 1, "parallel_block": True, "qk_norm_type": "per_layer"},
    required=(),
)
cohere2 = Family(
    title="Command-A and Command-R7B",
    defaults={
        "tie_word_embeddings": True,
        "head_dim": 128,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
    },
    fixed={"norm": "rmsnorm", "norms": 1, "parallel_block": True, "slides": "but every n-th"},
)


def _chatglm(fields: Fields) -> Mapping[str, object]:
    groups = fields.flag("multi_query_attention", default=False)
    bias = fields.flag("bias", default=False)
    return {
        **({} if groups else {"multi_head": True}),
        "norm": "rmsnorm" if fields.flag("rmsnorm", default=True) else "layernorm",
        "final_norm": fields.flag("post_layer_norm", default=True),
        "qkv_bias": bias or fields.flag("qkv_bias", default=False),
        "out_bias": bias,
        "mlp_bias": bias,
        "lm_head": True,
    }


chatglm = Family(
    title="ChatGLM 2, 3 and GLM-4-9B",
    source="configuration and modelling files of zai-org/chatglm3-6b on Hugging Face",
    spells={
        "vocab_size": ("padded_vocab_size",),
        "num_key_value_heads": ("multi_query_group_num",),
        "max_position_embeddings": ("seq_length",),
        "intermediate_size": ("ffn_hidden_size",),
    },
    required=(),
    dropouts=("attention_dropout", "hidden_dropout"),
    rule=_chatglm,
)
