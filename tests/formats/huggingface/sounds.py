"""Configs of models with audio towers, and the parameters of the classes that run them."""

from __future__ import annotations

from typing import Any

from tests.formats.huggingface.tower_classes import SMALL
from tests.formats.huggingface.towers import QWEN25_VISION

WHISPER = {
    "d_model": 1280,
    "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "encoder_layers": 32,
    "num_mel_bins": 128,
    "max_source_positions": 1500,
}
SAME = {
    "hidden_size": 1280,
    "num_attention_heads": 20,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_mel_bins": 128,
}


def _beside(model_type: str, text: str, audio: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Two layers of text beside a whole tower."""
    part = {**SMALL, "model_type": text, "tie_word_embeddings": False}
    return {"model_type": model_type, "text_config": part, "audio_config": audio, **more}


OMNI = {
    **_beside("qwen2_5_omni_thinker", "qwen2_5_omni_text", {**WHISPER, "n_window": 100, "output_dim": 3584}),
    "vision_config": QWEN25_VISION,
}
OMNI["text_config"] = {**OMNI["text_config"], "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4}

POSITIONS = {**SAME, "max_source_positions": 1500}
FLAMINGO = {**POSITIONS, "model_type": "audioflamingo3_encoder"}

CLASSES: dict[str, tuple[dict[str, Any], int]] = {
    "qwen2-audio": (_beside("qwen2_audio", "qwen2", WHISPER), 1_309_679_616),
    "voxtral": (_beside("voxtral", "llama", POSITIONS), 1_342_156_800),
    "audio-flamingo-3": (_beside("audioflamingo3", "qwen2", FLAMINGO), 1_326_460_928),
    "music-flamingo": (_beside("musicflamingo", "qwen2", FLAMINGO), 1_326_460_928),
    "glm-asr": (_beside("glmasr", "llama", SAME, tie_word_embeddings=False), 1_377_997_824),
    "qwen3-asr": (
        _beside(
            "qwen3_asr",
            "qwen3",
            {"encoder_layers": 3, "output_dim": 4096, "num_mel_bins": 80},
            tie_word_embeddings=False,
        ),
        719_546_496,
    ),
    "qwen2.5-omni": (OMNI, 1_841_495_552),
}
"""Source: modelling classes of transformers 5.23.0, built without weights, 2026-11."""
