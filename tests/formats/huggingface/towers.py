"""Configs of models with vision towers, as published, and the parameters that their safetensors files count."""

from __future__ import annotations

from typing import Any

QWEN2 = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
}
LLAMA3 = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}
MISTRAL = {
    "model_type": "mistral",
    "hidden_size": 5120,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 131072,
    "max_position_embeddings": 131072,
}
PIXTRAL = {
    "model_type": "pixtral",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "head_dim": 64,
}
QWEN25_VISION = {
    "depth": 32,
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "num_heads": 16,
    "out_hidden_size": 3584,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "fullatt_block_indexes": [7, 15, 23, 31],
    "window_size": 112,
}
CLIP_L = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "image_size": 336,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "patch_size": 14,
}
INTERNVIT = {
    "model_type": "intern_vit_6b",
    "hidden_size": 1024,
    "image_size": 448,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "patch_size": 14,
    "qkv_bias": True,
    "qk_normalization": False,
    "norm_type": "layer_norm",
}
LLAVA: dict[str, Any] = {
    "model_type": "llava",
    "text_config": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 4096,
        "vocab_size": 32064,
    },
    "vision_config": CLIP_L,
}
QWEN25_VL: dict[str, Any] = {"model_type": "qwen2_5_vl", **QWEN2, "vision_config": QWEN25_VISION}
MLLAMA: dict[str, Any] = {
    "model_type": "mllama",
    "text_config": {
        "model_type": "mllama_text_model",
        **LLAMA3,
        "num_hidden_layers": 40,
        "vocab_size": 128256,
        "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38],
    },
    "vision_config": {
        "model_type": "mllama_vision_model",
        "attention_heads": 16,
        "hidden_size": 1280,
        "image_size": 560,
        "intermediate_size": 5120,
        "max_num_tiles": 4,
        "num_global_layers": 8,
        "num_hidden_layers": 32,
        "patch_size": 14,
        "vision_output_dim": 7680,
    },
}

GLM_OCR: dict[str, Any] = {
    "model_type": "glm_ocr",
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "glm_ocr_text",
        "hidden_size": 1536,
        "intermediate_size": 4608,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 59392,
        "max_position_embeddings": 131072,
    },
    "vision_config": {"model_type": "glm_ocr_vision", "out_hidden_size": 1536},
}
PADDLEOCR_VL: dict[str, Any] = {
    "model_type": "paddleocr_vl",
    "text_config": {
        "model_type": "paddleocr_vl_text",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 18,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "vocab_size": 103424,
        "max_position_embeddings": 131072,
    },
    "vision_config": {"model_type": "paddleocr_vl_vision"},
}
LFM2_VL: dict[str, Any] = {
    "model_type": "lfm2_vl",
    "downsample_factor": 2,
    "projector_hidden_size": 2048,
    "projector_use_layernorm": False,
    "text_config": {
        "model_type": "lfm2",
        "hidden_size": 2048,
        "block_dim": 2048,
        "conv_dim": 2048,
        "conv_dim_out": 2048,
        "intermediate_size": 12288,
        "layer_types": ["conv", "conv", "full_attention"] * 3 + ["conv", "full_attention"] * 3 + ["conv"],
        "num_attention_heads": 32,
        "num_heads": 32,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "max_position_embeddings": 128000,
        "vocab_size": 65536,
    },
    "vision_config": {
        "model_type": "siglip2_vision_model",
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "num_patches": 256,
        "patch_size": 16,
        "vision_use_head": False,
    },
}

PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "llava-1.5-7b": (LLAVA, 7_063_427_072),
    "qwen2-vl-7b": (
        {
            "model_type": "qwen2_vl",
            **QWEN2,
            "vision_config": {
                "depth": 32,
                "embed_dim": 1280,
                "hidden_size": 3584,
                "num_heads": 16,
                "patch_size": 14,
                "spatial_merge_size": 2,
                "mlp_ratio": 4,
            },
        },
        8_291_375_616,
    ),
    "qwen2.5-vl-7b": (QWEN25_VL, 8_292_166_656),
    "qwen2.5-vl-72b": (
        {
            **QWEN25_VL,
            "hidden_size": 8192,
            "intermediate_size": 29568,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "vision_config": {**QWEN25_VISION, "intermediate_size": 3456, "out_hidden_size": 8192},
        },
        73_410_777_344,
    ),
    "llama-3.2-11b-vision": (MLLAMA, 10_670_220_835),
    "pixtral-12b": (
        {
            "model_type": "llava",
            "text_config": {**MISTRAL, "intermediate_size": 14336},
            "vision_config": {**PIXTRAL, "patch_size": 16},
        },
        12_682_740_736,
    ),
    "mistral-small-3.1-24b": (
        {
            "model_type": "mistral3",
            "spatial_merge_size": 2,
            "multimodal_projector_bias": False,
            "text_config": {**MISTRAL, "intermediate_size": 32768},
            "vision_config": {**PIXTRAL, "patch_size": 14},
        },
        24_011_361_280,
    ),
    "internvl3-8b": (
        {
            "model_type": "internvl_chat",
            "llm_config": {"model_type": "qwen2", **QWEN2, "vocab_size": 151674},
            "vision_config": INTERNVIT,
        },
        7_944_373_760,
    ),
    "internvl2.5-8b": (
        {
            "model_type": "internvl_chat",
            "llm_config": {
                "model_type": "internlm2",
                **LLAMA3,
                "num_hidden_layers": 32,
                "vocab_size": 92553,
                "bias": False,
            },
            "vision_config": INTERNVIT,
        },
        8_075_365_376,
    ),
    "kimi-vl-a3b": (
        {
            "model_type": "kimi_vl",
            "text_config": {
                "model_type": "deepseek_v3",
                "vocab_size": 163840,
                "max_position_embeddings": 131072,
                "hidden_size": 2048,
                "intermediate_size": 11264,
                "moe_intermediate_size": 1408,
                "num_hidden_layers": 27,
                "num_attention_heads": 16,
                "num_key_value_heads": 16,
                "n_shared_experts": 2,
                "n_routed_experts": 64,
                "num_experts_per_tok": 6,
                "first_k_dense_replace": 1,
                "kv_lora_rank": 512,
                "q_lora_rank": None,
                "qk_rope_head_dim": 64,
                "v_head_dim": 128,
                "qk_nope_head_dim": 128,
                "num_nextn_predict_layers": 0,
            },
            "vision_config": {
                "patch_size": 14,
                "init_pos_emb_height": 64,
                "init_pos_emb_width": 64,
                "num_attention_heads": 16,
                "num_hidden_layers": 27,
                "hidden_size": 1152,
                "intermediate_size": 4304,
            },
        },
        16_407_657_776,
    ),
}
"""Source: the number of parameters that the Hub states for each repository, and modelling classes of transformers."""
