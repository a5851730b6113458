"""Other names of the shared keys, as configs of transformers, MLC, Megatron and NeMo and older releases have them."""

from __future__ import annotations

SPELLINGS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "n_embed", "d_model", "model_dim", "embed_dim"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv", "n_kv_heads", "num_query_groups", "kv_n_heads"),
    "head_dim": ("kv_channels", "attention_head_dim", "d_head"),
    "intermediate_size": ("ffn_hidden_size", "ffn_hidden", "ffn_dim", "n_inner", "d_ff", "ff_dim", "dim_ff"),
    "vocab_size": ("padded_vocab_size",),
    "max_position_embeddings": (
        *("n_positions", "n_ctx", "max_sequence_length", "max_seq_len", "seq_length", "model_max_length"),
        *("context_window_size", "max_context_length", "encoder_seq_length", "max_position"),
    ),
    "num_experts": (
        *("n_routed_experts", "num_local_experts", "moe_num_experts", "num_moe_experts", "num_routed_experts"),
        "n_experts",
    ),
    "num_experts_per_tok": (
        *("experts_per_token", "num_experts_per_token", "moe_k", "moe_topk", "moe_top_k", "top_k_experts"),
        *("moe_router_topk", "num_selected_experts", "n_activated_experts"),
    ),
    "moe_intermediate_size": ("expert_ffn_hidden_size", "moe_ffn_hidden_size", "expert_intermediate_size"),
    "n_shared_experts": ("num_shared_experts", "num_shared_expert", "moe_num_shared_experts", "n_shared_expert"),
    "shared_expert_intermediate_size": (
        *("shared_intermediate_size", "share_expert_dim", "moe_shared_expert_intermediate_size"),
        "shared_expert_ffn_hidden_size",
    ),
    "dense_intermediate_size": ("intermediate_size_mlp",),
    "first_k_dense_replace": ("num_dense_layers", "moe_layer_start_index", "n_dense_layers"),
    "decoder_sparse_step": ("interleave_moe_layer_step", "moe_layer_interval"),
    "qkv_bias": ("use_qkv_bias", "add_qkv_bias", "attention_qkv_bias"),
    "out_bias": ("attention_out_bias", "attention_output_bias"),
    "bias": ("use_bias", "add_bias_linear"),
    "qk_norm": ("use_qk_norm", "qk_layernorm", "use_qk_layernorm"),
    "output_gate": ("attn_output_gate", "attention_output_gate", "use_output_gate", "gated_attention"),
    "swa_num_attention_heads": ("num_sliding_attention_heads",),
    "head_gate": ("use_head_wise_attn_gate",),
    "gated_mlp": ("gated_linear_unit", "swiglu", "use_gated_mlp"),
    "parallel_block": ("use_parallel_residual", "parallel_attn", "use_parallel_block"),
    "num_nextn_predict_layers": ("mtp_num_hidden_layers", "num_mtp_modules", "mtp_num_layers"),
    "sliding_window_pattern": ("_sliding_window_pattern",),
    "sliding_window": ("sliding_window_size", "sliding_window_attention_size"),
    "mamba_num_heads": ("mamba_n_heads", "n_mamba_heads"),
    "mamba_head_dim": ("mamba_d_head", "mamba_headdim"),
    "n_groups": ("mamba_n_groups", "mamba_ngroups"),
    "ssm_state_size": ("mamba_d_state", "state_size"),
    "conv_kernel": ("mamba_d_conv",),
    "chunk_size": ("mamba_chunk_size",),
    "use_conv_bias": ("mamba_conv_bias",),
    "expand": ("mamba_expand",),
    "time_step_rank": ("mamba_dt_rank",),
    "linear_conv_kernel_dim": ("short_conv_kernel_size",),
    "n_group": ("num_expert_group",),
    "moe_latent_size": ("routed_expert_hidden_size",),
    "linear_head_dim": ("linear_attn_head_dim",),
    "lm_head_bias": ("head_bias",),
    "tie_word_embeddings": ("share_embeddings_and_output_weights", "tie_embeddings"),
}
"""Shared key to other names of it, asked in this order after the key itself."""

SAME = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "num_experts")
"""Keys of which two spellings must not say different numbers."""
