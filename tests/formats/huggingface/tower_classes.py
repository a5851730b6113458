"""Small configs of models with vision towers, and the parameters of the classes that run them."""

from __future__ import annotations

from typing import Any

from tests.formats.huggingface.towers import CLIP_L, GLM_OCR, LFM2_VL, MLLAMA, PADDLEOCR_VL, PIXTRAL

SMALL = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32064,
    "max_position_embeddings": 4096,
}
SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 364,
    "patch_size": 14,
}


def _beside(model_type: str, text: str, vision: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Two layers of text beside a whole tower."""
    return {"model_type": model_type, "text_config": {**SMALL, "model_type": text}, "vision_config": vision, **more}


JANUS = {
    "model_type": "janus",
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 3,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "vocab_size": 102400,
        "max_position_embeddings": 16384,
    },
    "vision_config": {
        "model_type": "janus_vision_model",
        "hidden_size": 1024,
        "mlp_ratio": 4.0,
        "projection_dim": 2048,
        "use_qk_norm": True,
    },
}
"""Counted without what makes images: `vqmodel` and `generation_*`."""

UNTIED = {"tie_word_embeddings": False}
MUSE: dict[str, Any] = {
    "model_type": "muse_glimmer",
    "text_config": {
        "model_type": "muse_glimmer_text",
        "hidden_size": 6656,
        "intermediate_size": 19968,
        "num_hidden_layers": 52,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "vocab_size": 202048,
        "max_position_embeddings": 131072,
        "layer_types": [*["sliding_attention"] * 3, "full_attention"] * 13,
        **UNTIED,
    },
    "vision_config": {"model_type": "muse_glimmer_vision"},
}
CLOVA: dict[str, Any] = {
    "model_type": "hyperclovax_vision_v2",
    "text_config": {
        **SMALL,
        "model_type": "hyperclovax",
        "num_hidden_layers": 32,
        "vocab_size": 32000,
        "use_post_norm": True,
        "tie_word_embeddings": True,
    },
    "vision_config": {"model_type": "qwen2_5_vl_vision", "hidden_size": 3584, "out_hidden_size": 3584},
}
STEP: dict[str, Any] = {
    "model_type": "step3p7",
    "text_config": {
        **SMALL,
        "model_type": "step3p5",
        "num_key_value_heads": 8,
        "head_dim": 128,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 1280,
        "share_expert_dim": 1280,
        "mlp_layer_types": ["dense", "sparse"],
        "layer_types": ["full_attention", "full_attention"],
        "num_nextn_predict_layers": 0,
    },
    "vision_config": {"model_type": "step3p5_vision", "num_hidden_layers": 5},
}
ARIA = _beside(
    "aria",
    "aria_text",
    {**SIGLIP, "model_type": "idefics3_vision", "image_size": 980},
    projector_patch_to_query_dict={"1225": 128, "4900": 256},
    **UNTIED,
)
ARIA["text_config"] |= {"moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 2, "intermediate_size": 1664}
QWEN3_OMNI = {
    **_beside(
        "qwen3_omni_moe_thinker",
        "qwen3_omni_moe_text",
        {"depth": 4, "deepstack_visual_indexes": [1, 2], "out_hidden_size": 4096},
        **UNTIED,
    ),
    "audio_config": {"encoder_layers": 3, "output_dim": 4096},
}
QWEN3_OMNI["text_config"] |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 768}

CLASSES: dict[str, tuple[dict[str, Any], int]] = {
    "muse-glimmer-30b": (MUSE, 29_776_626_688),
    "hyperclovax-vision-2": (CLOVA, 9_705_315_072),
    "llava-next": (_beside("llava_next", "llama", CLIP_L), 991_930_368),
    "idefics3": (_beside("idefics3", "llama", SIGLIP, scale_factor=2), 1_099_239_664),
    "smolvlm": (_beside("smolvlm", "llama", SIGLIP, scale_factor=4), 1_155_862_768),
    "llava-onevision": (_beside("llava_onevision", "qwen2", {**SIGLIP, "image_size": 384}), 1_117_197_376),
    "gemma3": (_beside("gemma3", "gemma3_text", {**SIGLIP, "image_size": 896}), 1_107_164_224),
    "llava": (_beside("llava", "llama", CLIP_L), 991_926_272),
    "llava-next-video": (_beside("llava_next_video", "llama", CLIP_L), 991_930_368),
    "vipllava": (_beside("vipllava", "llama", CLIP_L, vision_feature_layer=[-2, -5, -8, -11, 6]), 1_008_713_728),
    "video-llava": (_beside("video_llava", "llama", {**CLIP_L, "image_size": 224}), 1_294_778_368),
    "shieldgemma2": (_beside("shieldgemma2", "gemma3_text", {**SIGLIP, "image_size": 896}), 1_107_164_224),
    "deepseek-vl": (_beside("deepseek_vl", "llama", SIGLIP, tie_word_embeddings=False), 1_117_107_648),
    "aya-vision": (
        _beside("aya_vision", "cohere2", {**SIGLIP, "vision_use_head": False}, alignment_intermediate_size=28672),
        1_139_905_776,
    ),
    "cohere2-vision": (
        _beside("cohere2_vision", "cohere2", {**SIGLIP, "image_size": 512, "patch_size": 16}),
        1_210_277_312,
    ),
    "glm46v": (_beside("glm46v", "glm4v_text", {"model_type": "glm4v_vision", "out_hidden_size": 4096}), 1_559_978_496),
    "glmga": (_beside("glmga", "glm4v_text", {"model_type": "glm4v_vision", "out_hidden_size": 4096}), 1_559_978_496),
    "cosmos3-omni": (
        _beside("cosmos3_omni", "qwen3_vl_text", {"model_type": "qwen3_vl_vision", "out_hidden_size": 4096}),
        1_243_827_952,
    ),
    "glm-ocr": (GLM_OCR, 1_107_405_824),
    "paddleocr-vl": (PADDLEOCR_VL, 799_695_472),
    "lighton-ocr": (_beside("lighton_ocr", "qwen3", PIXTRAL, tie_word_embeddings=False), 1_096_096_256),
    "janus": (JANUS, 883_667_968),
    "mllama": (MLLAMA, 10_670_220_835),
    "aria": (ARIA, 1_092_518_512),
    "exaone-4.5": (
        _beside(
            "exaone4_5",
            "exaone4",
            {"hidden_size": 1280, "num_heads": 16, "num_key_value_heads": 4, "depth": 4, "out_hidden_size": 4096},
            tie_word_embeddings=False,
        ),
        785_112_032,
    ),
    "got-ocr2": (
        _beside("got_ocr2", "qwen2", {"num_hidden_layers": 6, "global_attn_indexes": [2, 5]}, **UNTIED),
        751_396_352,
    ),
    "idefics2": (
        _beside("idefics2", "mistral", {**SIGLIP, "model_type": "idefics2_vision", "image_size": 980}, **UNTIED),
        1_807_151_344,
    ),
    "ovis2": (
        _beside(
            "ovis2", "qwen2", {"hidden_stride": 2, "image_size": 448}, hidden_size=4096, vocab_size=32064, **UNTIED
        ),
        1_111_677_942,
    ),
    "qianfan-ocr": (_beside("qianfan_ocr", "qwen3", {"attention_bias": True}, **UNTIED), 1_005_022_720),
    "qwen3-omni": (QWEN3_OMNI, 738_095_936),
    "step-3.7": (STEP, 1_051_206_400),
    "video-llama-3": (
        _beside("video_llama_3", "qwen2", {**SIGLIP, "model_type": "video_llama_3_vision"}, **UNTIED),
        1_101_115_120,
    ),
    "lfm2.5-vl-1.6b": (LFM2_VL, 1_596_625_904),
}
"""Source: modelling classes of transformers 5.23.0 and 5.24.0, built without weights, 2026-11."""
