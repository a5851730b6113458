"""Which keys of a config change neither sizes nor work, which do and are not understood, and what is said of others."""

from __future__ import annotations

import re

from meshwright.formats.huggingface.fields import Fields, show

_HARMLESS_WORDS = (
    # Names, versions, files and what a program does with the model.
    "model_type architectures architecture auto_map schema source transformers_version torch_dtype dtype name_or_path"
    " _name_or_path tokenizer_class processor_class language languages license id2label label2id problem_type"
    " finetuning_task"
    " _commit_hash _from_model_config predict_special_tokens is_llama_config"
    " unsloth_version unsloth_fixed init_device verbose seed use_cache use_bfloat16 torchscript"
    " return_dict return_dict_in_generate output_attentions output_hidden_states output_scores output_router_logits"
    " gradient_checkpointing pruned_heads task_specific_params is_decoder tie_encoder_decoder ignore_index prefix"
    " attn_implementation _attn_implementation _attn_implementation_internal use_flash_attn use_flash_attention"
    " use_mamba_kernels use_mambapy use_associative_scan use_mem_eff_path use_kernel use_cache_quantization"
    " use_cache_kernel num_logits_to_keep runner_max_sequence_length softmax_in_fp32 attention_softmax_in_fp32"
    " scale_attention_softmax_in_fp32 fp32_residual_connection residual_in_fp32 reorder_and_upcast_attn slow_but_exact"
    " bias_dropout_fusion apply_query_key_layer_scaling fused_mlp fused_bias_fc use_fused_rope use_fused_rms_norm"
    " chunk_size_feed_forward pretraining_tp ep_size expert_dtype quantization quantization_config compression_config"
    " quant_method quantize_embeddings load_in_4bit load_in_8bit num_labels language_model_only"
    " total_parameters total_params num_parameters num_params n_params context_limit"
    " ignore_keys_at_rope_validation"
    # What a fine-tune leaves in the file.
    " sft train_type lora_alpha neftune_noise_alpha"
    # Generation.
    " temperature top_k top_p typical_p do_sample num_beams num_beam_groups diversity_penalty early_stopping"
    " length_penalty repetition_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids max_length"
    " min_length max_new_tokens num_return_sequences suppress_tokens begin_suppress_tokens remove_invalid_values"
    " exponential_decay_length_penalty cache_implementation stream_chat_template chat_template generation_config"
    # Activations, positions and factors: no weights, and no more work than the layer around them has.
    " hidden_act hidden_activation activation activation_function afn hidden_mamba_act mlp_hidden_act mamba_hidden_act"
    " alibi attn_scale floor_scale attn_temperature_tuning rotary_dim rotary_pct rotary rotary_emb_base original_rope"
    " use_rope use_alibi use_rotary rope position_embedding_type position_embedding_base partial_rotary_factor"
    " no_rope_layers no_rope_layer_interval use_dynamic_ntk use_logn_attn llama_4_scaling_beta long_factor"
    " compress_rope_theta original_max_position_embeddings initial_context_length swiglu_limit swiglu_alpha"
    " logit_scale scale_emb scale_depth dim_model_base mup_enabled mup_base clip_qkv use_gemma_norm"
    " final_logit_softcapping attn_logit_softcapping logits_soft_cap router_logit_softcapping query_pre_attn_scalar"
    " scale_attn_weights scale_attn_by_inverse_layer_idx scale_embedding scale_embeddings rescale_prenorm_residual"
    " rescale_embeddings norm_type normalization use_rmsnorm layer_norm_elementwise_affine add_bos_token add_eos_token"
    " use_bidirectional_attention attention_value_scale norm_reduction_force_float32 embedding_fraction causal"
    # Routing: which experts, not how many or how wide.
    " norm_topk_prob topk_method scoring_func moe_layernorm routed_scaling_factor"
    " route_scale router_scaling_factor moe_router_scaling_factor moe_routed_scaling_factor expert_selection_fn"
    " enable_moe_fp32_combine moe_norm_min moe_gate_act moe_renormalize norm_topk_prob moe_group_balance seq_aux"
    " use_routing_bias use_moe_router_bias use_expert_bias moe_router_enable_expert_bias n_hash_layers num_hash_layers"
    " moe_shared_expert_overlap moe_apply_router_weight_on_input moe_use_aux_free shared_expert_combination_strategy"
    " moe_topk_group moe_n_group router_activation_func moe_router_activation_func score_function use_grouped_topk"
    " norm_head norm_softmax multi_gate group_norm_size linear_silu router_dtype using_split_qkv_in_self_attention"
    # Heads of other tasks; modules for more tokens at once are counted by their number.
    " use_mtp mtp_transformer_layers mtp_use_dedicated_embeddings mtp_hybrid_override_pattern mtp_layers_block_type"
    " index_share_for_mtp_iteration summary_activation summary_first_dropout summary_last_dropout summary_type"
    " summary_proj_to_labels summary_use_proj classifier_dropout classifier_dropout_prob classifier_activation"
    # What MLC keeps beside a model's shape.
    " prefill_chunk_size tensor_parallel_shards pipeline_parallel_stages max_batch_size disaggregation kwargs"
    " attention_sink_size conv_template"
    # Read together with another key of the same meaning.
    " max_window_layers use_sliding_window sliding_window_pattern layer_types rope_parameters rope_scaling mlp_bias"
    " attention_bias head_dim intermediate_size sliding_window cache_config tie_word_embeddings vocab_size"
    " num_key_value_heads intermediate_size_mlp dense_intermediate_size moe_intermediate_size first_k_dense_replace"
    " moe_layer_freq decoder_sparse_step mlp_only_layers moe_layer_end_index num_experts_per_tok n_shared_experts"
    " shared_expert_intermediate_size experts_per_token multi_query_attention no_bias num_attention_heads"
    " vision_config audio_config img_processor embd_layer mm_vision_tower vision_tower projector_hidden_act"
    " qk_norm_type attention_types attention_layers window_size use_residual"
    " rescale_every model_version attn_mode fuse_norm fuse_cross_entropy norm_first norm_bias hidden_ratio"
    " vocab_size_per_layer_input use_double_wide_mlp full_attn_mod interpolate_factor mlp_type output_gate_type"
    " expand mamba_expand mamba_norm_before_gate linear_allow_neg_eigval"
)
HARMLESS = frozenset(_HARMLESS_WORDS.split())
"""Keys that change neither sizes nor work, or whose meaning is read together with another key."""

_HARMLESS_FORMS = re.compile(
    r".*_token_(id|ids|index|indices)|.*_token|.*_idx"
    r"|(rope|rotary|yarn|mrope|ntk)_.*|.*_rope_(theta|interleave)|.*_rope_base"
    r"|.*(_eps|_epsilon)|eps|(init|initializer)_.*|.*_initializer_range|.*_init_(std|scheme|min|max)|time_step_.*|linear_(a_log|dt)_.*"
    r"|.*(dropout|dropout_prob|pdrop|_loss_coef|aux_loss.*|loss_coefficient|loss_weight|loss_scaling_factor|loss_alpha)"
    r"|(tune_|freeze_|unfreeze_|use_)?mm_.*|image_(aspect_ratio|grid_pinpoints|crop_resolution|split_resolution)"
    r"|_(attn|experts|load|pre_quantization)_.*|(tensor|pipeline|model|expert|context|data)_(model_)?parallel(_size)?"
    r"|(.*_)?tokenizer_.*|.*(jitter|jitter_eps|jitter_noise|layerdrop)|(.*_)?z_loss.*"
    r"|.*(_multiplier|_multipliers|_scaling|_version|_dtype|_in_fp32|_alpha_factor|_beta_factor)|.*_softcapping|transformers.*"
)
_SIZE_FORMS = re.compile(r"num_.*|n_.*|.*_(size|sizes|dim|dims|rank|heads|experts|layers|groups|blocks|width|hidden)")

CHANGES: dict[str, str] = {
    "type_vocab_size": "a table of token types means an encoder",
    "draft_vocab_size": "a draft model that reads the layers of another model",
    "dflash_config": "a draft model that reads the layers of another model",
    "add_cross_attention": "cross attention means an encoder beside the decoder",
    "cross_attention_layers": "cross attention means an encoder beside the decoder",
    "is_encoder_decoder": "an encoder beside the decoder",
    "encoder_layers": "an encoder beside the decoder",
    "num_decoder_layers": "an encoder beside the decoder",
    "num_encoder_layers": "an encoder beside the decoder",
    "embedding_size": "an embedding of another width than the layers",
    "enable_moe_block": "experts beside a dense MLP",
    "hc_mult": "several residual streams (hyper-connections)",
    "hc_count": "several residual streams (hyper-connections)",
    "compress_ratios": "attention over compressed keys and values",
    "compress_rates": "attention over compressed keys and values",
    "o_lora_rank": "an output projection of low rank",
    "residual_moe": "experts beside a dense MLP",
    "ssm_state_size": "state-space layers",
    "state_size": "state-space layers",
    "mamba_d_state": "state-space layers",
    "hybrid_override_pattern": "layers of other kinds than attention",
    "layers_block_type": "layers of other kinds than attention",
    "block_types": "layers of other kinds than attention",
    "attn_layer_period": "layers of other kinds than attention",
    "full_attn_idxs": "layers of other kinds than attention",
    "attn_type_list": "layers of other kinds than attention",
    "linear_num_value_heads": "linear attention",
    "linear_attn_config": "linear attention",
    "conv_L_cache": "convolution layers",
    "lru_width": "recurrent layers",
    "attention_other_setting": "attention of other sizes in some layers",
    "block_configs": "layers whose sizes differ one by one",
    "gated_norm_rank": "norms with gates of low rank",
    "gating": "a gate of its own on attention",
    "rel_extent": "learned relative positions",
    "use_cla": "layers that share the keys and values of others",
}
"""Keys that change the model and that no reader understands, with what they ask for."""


def harmless(key: str) -> bool:
    """Whether a key changes neither sizes nor work."""
    return key in HARMLESS or _HARMLESS_FORMS.fullmatch(key) is not None


def left_over(fields: Fields) -> None:
    """Refuse what changes the model and was not read; say which keys a known family, whose class ignores them, lacks.

    Args:
        fields: the config, after everything that is understood was read.
    """
    changing, unknown, ignored = {}, {}, []
    for key, value in fields.unread().items():
        if _says_nothing(value) or harmless(key):
            continue
        if key in CHANGES:
            changing[key] = value
        elif not fields.known or _may_be_a_size(key, value):
            unknown[key] = value
        else:
            ignored.append(key)
    for key, value in changing.items():
        why = f"it asks for {CHANGES[key]}, which cannot be planned here"
        fields.refuse(key, value, why, "take the key out to plan the model without it")
    for key, value in ({} if changing else unknown).items():
        why = "this family has no such key" if fields.known else "the family is unknown and so is this key"
        fields.refuse(
            key,
            value,
            f"{why}, which may change the model",
            "leave it out if it changes neither sizes nor layers",
        )
    if ignored:
        fields.remark(f"left out, as its family has no such key: {', '.join(sorted(show(key) for key in ignored)[:8])}")


def _may_be_a_size(key: str, value: object) -> bool:
    """Whether a key that its family does not have looks like one that changes sizes."""
    whole = isinstance(value, int) and not isinstance(value, bool) and value > 1
    return whole and _SIZE_FORMS.fullmatch(key) is not None


def _says_nothing(value: object) -> bool:
    """Whether a value switches off what its key stands for."""
    return value is None or value is False or value == 0 or value in ("", "none") or value in ([], {}, ())
