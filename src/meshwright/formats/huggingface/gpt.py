"""Families with LayerNorm, as GPT has it: each says where it differs."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.formats.huggingface.family import Family
from meshwright.formats.huggingface.fields import Fields

_PLAIN = {"norm": "layernorm", "gated_mlp": False}
_BIASES = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}
_GPT2 = {**_PLAIN, **_BIASES, "learned_positions": True, "ffn_optional": True}
_GPT2_DROPOUTS = {"attn_pdrop": 0.1, "resid_pdrop": 0.1}

gpt2 = Family(
    title="GPT-2",
    spells={
        "hidden_size": ("n_embd",),
        "num_hidden_layers": ("n_layer",),
        "num_attention_heads": ("n_head",),
        "max_position_embeddings": ("n_positions", "n_ctx"),
        "intermediate_size": ("n_inner",),
    },
    defaults={"tie_word_embeddings": True, **_GPT2_DROPOUTS},
    fixed={**_GPT2, "multi_head": True},
    required=(),
    dropouts=("attn_pdrop", "resid_pdrop"),
)
xglm = Family(
    title="XGLM",
    spells={
        "num_attention_heads": ("attention_heads",),
        "num_hidden_layers": ("num_layers",),
        "hidden_size": ("d_model",),
        "intermediate_size": ("ffn_dim",),
    },
    defaults={"tie_word_embeddings": True},
    fixed={**_PLAIN, **_BIASES, "multi_head": True},
    required=(),
    dropouts=("attention_dropout", "activation_dropout", "dropout"),
)
gpt_bigcode = Family(
    title="StarCoder 1 and SantaCoder",
    spells=gpt2.spells,
    defaults={"tie_word_embeddings": True, "multi_query": True, **_GPT2_DROPOUTS},
    fixed=_GPT2,
    required=(),
    dropouts=("attn_pdrop", "resid_pdrop"),
)
gptj = Family(
    title="GPT-J",
    spells=gpt2.spells,
    fixed={
        **_PLAIN,
        "qkv_bias": False,
        "out_bias": False,
        "mlp_bias": True,
        "ffn_optional": True,
        "multi_head": True,
        "norms": 1,
        "parallel_block": True,
        "lm_head_bias": True,
    },
    required=(),
    dropouts=("attn_pdrop", "resid_pdrop"),
)
codegen = Family(
    title="CodeGen",
    spells=gpt2.spells,
    fixed=gptj.fixed,
    required=(),
    dropouts=("attn_pdrop", "resid_pdrop"),
)


def _gpt_neo(fields: Fields) -> Mapping[str, object]:
    """Kinds of layers in a list, or in a list of lists and how often each is repeated."""
    if fields.given("attention_layers"):
        return {"layer_types": fields.raw("attention_layers")}
    return {}


gpt_neo = Family(
    title="GPT-Neo",
    spells={"sliding_window": ("window_size",)},
    defaults={"tie_word_embeddings": True},
    fixed={
        **_PLAIN,
        "qkv_bias": False,
        "out_bias": True,
        "mlp_bias": True,
        "learned_positions": True,
        "ffn_optional": True,
        "multi_head": True,
        "slides": "odd",
    },
    required=(),
    dropouts=("attention_dropout", "resid_dropout"),
    rule=_gpt_neo,
)
biogpt = Family(
    title="BioGPT",
    defaults={"tie_word_embeddings": True},
    fixed={**_PLAIN, **_BIASES, "learned_positions": True, "position_offset": 2, "multi_head": True},
    required=(),
    dropouts=("attention_probs_dropout_prob", "hidden_dropout_prob"),
)
persimmon = Family(
    title="Persimmon",
    defaults={"qk_norm": True},
    fixed={**_PLAIN, **_BIASES, "multi_head": True},
    required=(),
    dropouts=("attention_dropout", "hidden_dropout"),
)
ctrl = Family(
    title="CTRL",
    spells={**gpt2.spells, "intermediate_size": ("dff",)},
    defaults={"tie_word_embeddings": True, "resid_pdrop": 0.1},
    fixed={**_PLAIN, **_BIASES, "multi_head": True, "lm_head_bias": True},
    required=(),
    dropouts=("resid_pdrop",),
)
openai_gpt = Family(
    title="GPT-1",
    spells=gpt2.spells,
    defaults={"tie_word_embeddings": True, **_GPT2_DROPOUTS},
    fixed={**_GPT2, "multi_head": True, "final_norm": False},  # norms stand behind the parts
    required=(),
    dropouts=("attn_pdrop", "resid_pdrop"),
)


def _gpt_neox_japanese(fields: Fields) -> Mapping[str, object]:
    """MLPs so many times as wide as the stream; one bias, of the last layer's attention."""
    hidden = fields.whole("hidden_size")
    fields.remark(f"the bias behind the last layer's attention is left out: {hidden:,} parameters")
    return {"intermediate_size": hidden * fields.whole("intermediate_multiple_size", default=4)}


gpt_neox_japanese = Family(
    title="GPT-NeoX-Japanese",
    defaults={"tie_word_embeddings": True},
    fixed={**_PLAIN, "qkv_bias": False, "out_bias": False, "mlp_bias": False, "multi_head": True},
    required=(),
    dropouts=("attention_dropout", "hidden_dropout"),
    rule=_gpt_neox_japanese,
)
gpt_neox = Family(
    title="GPT-NeoX and Pythia",
    defaults={"attention_bias": True, "parallel_block": True},
    fixed={**_PLAIN, "mlp_bias": True, "multi_head": True},
    required=(),
    dropouts=("attention_dropout", "hidden_dropout"),
)
stablelm = Family(
    title="StableLM",
    fixed={"norm": "layernorm", "gated_mlp": True, "out_bias": False, "qk_norm_type": "per_layer"},
    required=(),
    dropouts=("attention_dropout", "hidden_dropout"),
)
starcoder2 = Family(
    title="StarCoder 2",
    defaults={"bias": True, "tie_word_embeddings": True},
    fixed={**_PLAIN, "slides": "all"},
    dropouts=("attention_dropout", "residual_dropout", "embedding_dropout"),
)
jais2 = Family(title="Jais 2", fixed={**_PLAIN})
nemotron = Family(
    title="Nemotron-4 and Minitron",
    fixed={**_PLAIN},
)
orion = Family(
    title="Orion",
    source="configuration and modelling files of OrionStarAI/Orion-14B-Base on Hugging Face",
    fixed={"norm": "layernorm", "gated_mlp": True},
    required=(),
)


def _opt(fields: Fields) -> Mapping[str, object]:
    hidden = fields.whole("hidden_size")
    narrow = fields.maybe("word_embed_proj_dim")
    if narrow not in (None, hidden) and not fields.bad("word_embed_proj_dim", "hidden_size"):
        fields.refuse(
            "word_embed_proj_dim", narrow, f"only embeddings as wide as hidden_size = {hidden} can be planned"
        )
    bias = fields.flag("enable_bias", default=True)
    before = fields.flag("do_layer_norm_before", default=True)
    removed = fields.flag("_remove_final_layer_norm", default=False)
    return {"qkv_bias": bias, "out_bias": bias, "mlp_bias": bias, "final_norm": before and not removed}


# Its table has two positions more than the longest sequence, the offset of its padding index.
opt = Family(
    title="OPT",
    spells={"intermediate_size": ("ffn_dim",), "hidden_size": ("hidden_size", "d_model")},
    defaults={"tie_word_embeddings": True, "dropout": 0.1, "activation_function": "relu"},
    fixed={**_PLAIN, "learned_positions": True, "position_offset": 2, "multi_head": True},
    required=(),
    dropouts=("dropout", "attention_dropout", "activation_dropout"),
    rule=_opt,
)
_BLOOM_KEYS = {
    "hidden_size": ("hidden_size", "n_embed"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
}
"""Spellings that BLOOM's and Falcon's first configs have."""

bloom = Family(
    title="BLOOM",
    spells={**_BLOOM_KEYS, "max_position_embeddings": ("seq_length",), "intermediate_size": ("n_inner",)},
    defaults={"tie_word_embeddings": True, "max_position_embeddings": 2048},
    fixed={**_PLAIN, **_BIASES, "ffn_optional": True, "embedding_norm": True, "multi_head": True},
    required=(),
    dropouts=("attention_dropout", "hidden_dropout"),
)
mpt = Family(
    title="MPT",
    defaults={"tie_word_embeddings": True},
    fixed={"gated_mlp": False, "multi_head": True, "ffn_optional": True},
    required=(),
    dropouts=("emb_pdrop", "resid_pdrop"),
)


def _falcon(fields: Fields) -> Mapping[str, object]:
    """One key-value head and one norm (7B), or groups and a norm for each branch (40B, 180B, 11B)."""
    modern = fields.flag("new_decoder_architecture", default=False)
    query = "multi_query" if fields.flag("multi_query", default=True) else "multi_head"
    parallel = fields.flag("parallel_block", default=True)
    norms = fields.whole("num_ln_in_parallel_attn", default=2 if modern else 1, high=2) if parallel else 2
    heads = {"multi_query": False} if modern else {"multi_query": False, query: True}
    return {**heads, "parallel_block": parallel, "norms": norms}


falcon = Family(
    title="Falcon",
    spells={**_BLOOM_KEYS, "intermediate_size": ("ffn_hidden_size",)},
    defaults={"tie_word_embeddings": True, "max_position_embeddings": 2048, "bias": False},
    fixed={**_PLAIN, "ffn_optional": True},
    required=(),
    dropouts=("attention_dropout", "hidden_dropout"),
    rule=_falcon,
)


def _phi(fields: Fields) -> Mapping[str, object]:
    if fields.flag("qk_norm", default=False):
        fields.refuse("qk_layernorm", True, "LayerNorm on queries and keys cannot be planned", "set it to false")
    return {"qk_norm": "none"}


# Attention and MLP read one norm.
phi = Family(
    title="Phi-1, 1.5 and 2",
    fixed={
        **_PLAIN,
        **_BIASES,
        "ffn_optional": True,
        "norms": 1,
        "parallel_block": True,
        "lm_head_bias": True,
    },
    required=(),
    dropouts=("attention_dropout", "resid_pdrop"),
    rule=_phi,
)


def _gpt(fields: Fields) -> Mapping[str, object]:
    return {"norms": 1} if fields.flag("parallel_block", default=False) else {}


# `gated_mlp`, `bias`, `norm` (layernorm | rmsnorm), `parallel_block` (with one norm for both branches),
# `learned_positions`, `tie_word_embeddings` and `dropout` are its own words.
gpt = Family(
    title="a plain shape as papers print it",
    source="not a Hugging Face family",
    defaults={
        "tie_word_embeddings": True,
        "norm": "layernorm",
        "bias": True,
        "gated_mlp": False,
        "learned_positions": True,
    },
    fixed={"ffn_optional": True},
    required=(),
    dropouts=("dropout",),
    rule=_gpt,
)
