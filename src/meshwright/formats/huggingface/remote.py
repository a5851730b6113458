"""Families whose classes came with their weights and not with transformers: MiniCPM-V, Molmo, Phi-3-small."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.formats.huggingface.family import CLASSES, Family
from meshwright.formats.huggingface.fields import Fields


def _minicpmv(fields: Fields) -> Mapping[str, object]:
    """Layers of the model that a version was made from, told apart by the keys that only its configs have."""
    fields.has("version", "batch_vision_input", "image_size", "patch_size", "query_num", "slice_config", "slice_mode")
    fields.has("drop_vision_last_layer", "vision_batch_size", "use_image_id", "stream_input", "init_audio", "init_tts")
    fields.has("init_vision", "tts_config", "audio_pool_step", "audio_chunk_length", "vision_config", "audio_config")
    if fields.given("scale_emb"):
        return {"tie_word_embeddings": fields.flag("tie_word_embeddings", default=True)}
    if not fields.given("max_window_layers"):
        return {}
    if fields.given("attention_bias"):
        return {"qk_norm": "head", "slides": "from max_window_layers"}
    return {"qkv_bias": True, "out_bias": False, "slides": "from max_window_layers"}


minicpmv = Family(
    title="MiniCPM-V and MiniCPM-o",
    source="configuration and modelling files of openbmb/MiniCPM-V-2_6, MiniCPM-V-4 and MiniCPM-o-2_6 on Hugging Face",
    rule=_minicpmv,
)
MOLMO_ROWS = 128
"""Rows of the embedding for tokens of images, which the head does not predict."""


def _molmo(fields: Fields) -> Mapping[str, object]:
    """Molmo: `intermediate_size` counts gate and up projection together; norms are RMSNorms before the parts."""
    for key, plain in (("layer_norm_type", "rms"), ("attention_layer_norm", False), ("norm_after", False)):
        said = fields.raw(key)
        if said not in (None, plain):
            fields.refuse(key, said, f"only {plain} can be planned")
    fields.has("embedding_size", "use_position_ids", "weight_tying")
    extra = MOLMO_ROWS * fields.whole("hidden_size")
    fields.remark(f"rows of the embedding for tokens of images are left out: {extra:,} parameters fewer")
    return {"intermediate_size": fields.whole("intermediate_size", low=2) // 2, "out_bias": False, "norm": "rmsnorm"}


def _molmo2(fields: Fields) -> Mapping[str, object]:
    """Qwen 3's layers, or OLMo 2's where the norms on queries and keys are said to be."""
    if fields.flag("norm_after", default=False):
        fields.refuse("norm_after", True, "only norms before the parts can be planned")
    rows = fields.whole("additional_vocab_size", low=0, default=MOLMO_ROWS)
    extra = rows * fields.whole("hidden_size")
    fields.remark(f"rows of the embedding for tokens of images are left out: {extra:,} parameters fewer")
    fields.has("rope_scaling_layers", "qk_norm_type")
    norm = "all" if fields.raw("qk_norm_type") == "olmo" else "head"
    return {"qk_norm": norm if fields.flag("use_qk_norm", default=True) else "none", "out_bias": False}


molmo2 = Family(title="Molmo 2", source=CLASSES, rule=_molmo2)
molmo = Family(
    title="Molmo",
    source="configuration and modelling files of allenai/Molmo-7B-D-0924 on Hugging Face",
    rule=_molmo,
)


def _phi3small(fields: Fields) -> Mapping[str, object]:
    """A gated GELU with biases; layers that attend to blocks are priced as if to all tokens."""
    fields.has(
        *("blocksparse_block_size", "blocksparse_homo_head_pattern", "blocksparse_num_local_blocks"),
        *("blocksparse_triton_kernel_block_size", "blocksparse_vert_stride", "dense_attention_every_n_layers"),
        *("ff_dim_multiplier", "gegelu_limit", "gegelu_pad_to_256", "mup_use_scaling", "attention_bias"),
        *("mup_attn_multiplier", "mup_embedding_multiplier", "mup_width_multiplier", "pad_sequence_to_multiple_of_64"),
    )
    fields.remark("attention to blocks of tokens, in layers between the dense ones, is priced as attention to all")
    return {}


phi3small = Family(
    title="Phi-3-small",
    source="configuration and modelling files of microsoft/Phi-3-small-8k-instruct on Hugging Face",
    spells={"intermediate_size": ("ff_intermediate_size",)},
    defaults={"tie_word_embeddings": True},
    fixed={"norm": "layernorm", "gated_mlp": True, "qkv_bias": True, "out_bias": True, "mlp_bias": True},
    dropouts=("attention_dropout_prob", "embedding_dropout_prob", "ffn_dropout_prob"),
    rule=_phi3small,
)
