"""Towers of images and audio beside a text model: which ones a config has, their layers put before the text's.

A family is a function that reads `vision_config` or `audio_config` and keys of the projector, and returns a `Tower`.
Sizes that a config leaves out are those of its configuration class. Sources: configuration and modelling classes of
transformers 5.23.0, read 2026-11-22 and 2026-11-29, and what each family names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module

from meshwright.formats.huggingface.tower import Tower, section
from meshwright.specs.layer_spec import layer_runs
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.cross_attention import CrossAttention
from meshwright.specs.model import LayerSpec, ModelSpec

TOWERS: dict[str, str] = {
    "aria": "vision_resampled.aria",
    "aya_vision": "vision_siglip.aya_vision",
    "cohere2_vision": "vision_siglip.cohere2_vision",
    "cosmos3_omni": "vision_merged.qwen3_vl",
    "deepseek_vl": "vision_siglip.deepseek_vl",
    "exaone4_5": "vision_merged.qwen2_5_vl",
    "gemma3": "vision_siglip.gemma3",
    "gemma4": "vision_merged.gemma4",
    "glm46v": "vision_glm.glm4v",
    "glm4v": "vision_glm.glm4v",
    "glm4v_moe": "vision_glm.glm4v",
    "glm5_next": "vision_glm.glm5_next",
    "glm_ocr": "vision_glm.glm_ocr",
    "glmga": "vision_glm.glm4v",
    "got_ocr2": "vision_sam.got_ocr2",
    "hyperclovax_vision_v2": "vision_merged.hyperclovax",
    "idefics2": "vision_resampled.idefics2",
    "idefics3": "vision_siglip.idefics3",
    "internvl": "vision_fixed.internvl",
    "internvl_chat": "vision_fixed.internvl",
    "janus": "vision_siglip.janus",
    "kimi_k25": "vision_merged.kimi_k25",
    "kimi_k3": "vision_merged.kimi_k3",
    "kimi_vl": "vision_merged.kimi_vl",
    "lfm2_vl": "vision_siglip.lfm2_vl",
    "lfm3_vl": "vision_convolved.lfm3_vl",
    "lighton_ocr": "vision_merged.mistral3",
    "llama4": "vision_fixed.llama4",
    "llava": "vision_fixed.llava",
    "llava_next": "vision_fixed.llava_next",
    "llava_next_video": "vision_fixed.llava_next",
    "llava_onevision": "vision_siglip.llava_onevision",
    "minimax_m3_vl": "vision_merged.minimax_m3",
    "ministral3": "vision_merged.mistral3",
    "mistral3": "vision_merged.mistral3",
    "mistral_large4": "vision_merged.mistral3",
    "mllama": "vision_fixed.mllama",
    "molmo2": "vision_resampled.molmo2",
    "muse_glimmer": "vision_merged.muse_glimmer",
    "ovis2": "vision_fixed.ovis2",
    "paddleocr_vl": "vision_siglip.paddleocr_vl",
    "paligemma": "vision_siglip.paligemma",
    "phi3_v": "vision_fixed.phi3_v",
    "pp_chart2table": "vision_sam.got_ocr2",
    "qianfan_ocr": "vision_fixed.internvl",
    "qwen2_5_omni": "vision_merged.qwen2_5_vl",
    "qwen2_5_omni_thinker": "vision_merged.qwen2_5_vl",
    "qwen2_5_vl": "vision_merged.qwen2_5_vl",
    "qwen2_vl": "vision_merged.qwen2_vl",
    "qwen3_5": "vision_merged.qwen3_vl",
    "qwen3_5_moe": "vision_merged.qwen3_vl",
    "qwen3_omni_moe": "vision_merged.qwen3_vl",
    "qwen3_omni_moe_thinker": "vision_merged.qwen3_vl",
    "qwen3_vl": "vision_merged.qwen3_vl",
    "qwen3_vl_moe": "vision_merged.qwen3_vl",
    "shieldgemma2": "vision_siglip.gemma3",
    "smolvlm": "vision_siglip.idefics3",
    "step3p7": "vision_fixed.step3p7",
    "video_llama_3": "vision_siglip.video_llama_3",
    "video_llava": "vision_fixed.video_llava",
    "vipllava": "vision_fixed.vipllava",
}
"""`model_type` of a whole config to the file and function that read its vision tower."""

SOUNDS: dict[str, str] = {
    "audioflamingo3": "sound.audioflamingo3",
    "glmasr": "sound.glmasr",
    "musicflamingo": "sound.audioflamingo3",
    "qwen2_5_omni": "sound.qwen2_5_omni",
    "qwen2_5_omni_thinker": "sound.qwen2_5_omni",
    "qwen2_audio": "sound.qwen2_audio",
    "qwen3_asr": "sound.qwen3_asr",
    "qwen3_asr_thinker": "sound.qwen3_asr",
    "qwen3_omni_moe": "sound.qwen3_omni",
    "qwen3_omni_moe_thinker": "sound.qwen3_omni",
    "voxtral": "sound.voxtral",
}
"""The same of its audio tower."""

TOWER_KEYS = frozenset({"vision_config", "img_processor", "embd_layer", "cross_attention_layers", "num_image_tokens"})
"""Keys that readers of towers understand and readers of text do not."""

AUDIO = "the audio tower is left out"
IMAGES = "the vision tower is left out"


def without_tower(config: Mapping[str, object]) -> Mapping[str, object]:
    """A config without the keys of a tower that is known, for the reader of its text model.

    Args:
        config: the whole config.
    """
    said = config.get("model_type")
    if not isinstance(said, str) or said not in TOWERS:
        return config
    kept = {key: value for key, value in config.items() if key not in TOWER_KEYS}
    text = kept.get("text_config")
    if isinstance(text, Mapping):
        kept["text_config"] = {key: value for key, value in text.items() if key not in TOWER_KEYS}
    return kept


def towers_of(config: Mapping[str, object], name: str, hidden: int) -> tuple[Tower, ...]:
    """The towers of a config that are read: of images, then of audio.

    Args:
        config: the whole config, or its part with the towers.
        name: the name of the model.
        hidden: width of the text.

    Raises:
        InputError: a size of a tower is missing or wrong.
    """
    family, outer = config.get("model_type"), section(config, name)
    found: list[Tower] = []
    for readers, key in ((TOWERS, "vision_config"), (SOUNDS, "audio_config")):
        part = config.get(key)
        if not isinstance(family, str) or family not in readers:
            continue
        if not isinstance(part, Mapping) and family != "phi3_v":
            continue
        file, function = readers[family].split(".")
        inner = section(part if isinstance(part, Mapping) else {}, name, f"{key}.")
        found.append(getattr(import_module(f"meshwright.formats.huggingface.{file}"), function)(inner, outer, hidden))
    return tuple(found)


def with_towers(model: ModelSpec, towers: tuple[Tower, ...], config: Mapping[str, object]) -> ModelSpec:
    """A text model with the layers of towers before its own, and a note on those that are left out.

    Args:
        model: the text model.
        towers: the towers of the same config.
        config: the configuration with the towers.
    """
    for tower in reversed(towers):
        model = _with_tower(model, tower)
    heard = any(stream.clips for stream in model.streams)
    seen = any(stream.images for stream in model.streams)
    said: tuple[str, ...] = (AUDIO,) if seen and not heard and config.get("audio_config") is not None else ()
    said += (IMAGES,) if heard and not seen and config.get("vision_config") is not None else ()
    return replace(model, notes=(*model.notes, *said))


def _with_tower(model: ModelSpec, tower: Tower) -> ModelSpec:
    """A text model with the layers of a tower before its own."""
    own = [_crossed(layer, tower) if number in tower.readers else layer for number, layer in enumerate(model.layers())]
    text = layer_runs(own) if tower.readers else model.runs
    notes = (*model.notes, *tower.notes)
    return replace(model, runs=(*tower.runs, *text), streams=(*tower.streams, *model.streams), notes=notes)


def _crossed(layer: LayerSpec, tower: Tower) -> LayerSpec:
    """A layer whose attention reads images instead of the text before it."""
    attention = layer.attention
    assert isinstance(attention, Attention)
    cross = CrossAttention(
        memory=tower.streams[0].name,
        memory_width=tower.width,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        qk_norm=True,
        gates=2,
    )
    return replace(layer, attention=cross)
