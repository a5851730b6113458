"""Models from Hugging Face config.json: one reader for all decoders, and one entry a family that says where it differs.

Keys and what a missing one means follow the configuration classes of the transformers library; where a class would
fill in the shape of some other model (its hidden size, its layers), the key must be there instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module

from meshwright.errors import InputError
from meshwright.formats.huggingface.decoder import read_decoder
from meshwright.formats.huggingface.family import Family
from meshwright.formats.huggingface.fields import Fields, show
from meshwright.formats.huggingface.nested import (
    OF_MLC,
    SPEAKS,
    TOWERS,
    find_text,
    stored_as,
    text_alone,
    with_towers_beside,
)
from meshwright.formats.huggingface.settings import config_constants
from meshwright.specs.model import ModelSpec

__all__ = ["FAMILIES", "WEIGHTS", "read_config"]

WEIGHTS = (".gguf", ".safetensors")
"""Endings of files of weights, beside which a config lies or in whose header it stands."""

FAMILIES: dict[str, str] = {
    "Dream": "dense.dream",
    "RefinedWeb": "gpt.falcon",
    "RefinedWebModel": "gpt.falcon",
    "afmoe": "moe.afmoe",
    "apertus": "dense.apertus",
    "apertus1p5_text": "dense.apertus",
    "arcee": "dense.arcee",
    "arctic": "moe.arctic",
    "aria_text": "moe.aria",
    "axk1": "moe_latent.axk1",
    "axk2": "moe_latent.axk2",
    "baichuan": "dense.baichuan",
    "bailing_hybrid": "moe.bailing_hybrid",
    "bailing_moe": "moe.bailing_moe",
    "bailing_moe_linear": "moe.bailing_moe",
    "bailing_moe_v2": "moe.bailing_moe",
    "bailing_moe_v2_5": "moe.bailing_moe",
    "bamba": "hybrid.bamba",
    "beam": "moe.beam",
    "biogpt": "gpt.biogpt",
    "bitnet": "dense.bitnet",
    "bloom": "gpt.bloom",
    "chatglm": "dense.chatglm",
    "codegen": "gpt.codegen",
    "cohere": "dense.cohere",
    "cohere2": "dense.cohere2",
    "cohere2_moe": "moe.cohere2_moe",
    "cwm": "dense.llama",
    "ctrl": "gpt.ctrl",
    "dbrx": "moe.dbrx",
    "deepseek": "moe.deepseek_moe",
    "deepseek_v2": "moe_latent.deepseek_v2",
    "deepseek_v3": "moe_latent.deepseek_v3",
    "deepseek_v32": "moe_latent.deepseek_v32",
    "deepseek_v4": "moe_latent.deepseek_v4",
    "dots1": "moe.dots1",
    "emu3_text_model": "dense.llama",
    "dots3_note": "moe_latent.dots3_note",
    "dots3_note_text": "moe_latent.dots3_note",
    "ernie4_5": "dense.ernie4_5",
    "ernie4_5_moe": "moe.ernie4_5_moe",
    "eurobert": "dense.eurobert",
    "ernie4_5_moe_vl": "moe.ernie4_5_moe",
    "ernie4_5_vl_moe_text": "moe.ernie4_5_moe",
    "exaone": "dense.llama",
    "exaone4": "dense.exaone4",
    "exaone_moe": "moe.exaone_moe",
    "falcon": "gpt.falcon",
    "falcon_h1": "hybrid.falcon_h1",
    "falcon_mamba": "hybrid.mamba",
    "flex_olmo": "moe.flex_olmo",
    "flint": "moe.flint",
    "gated_deltanet": "fla.gated_deltanet",
    "gemma": "dense.gemma",
    "gemma2": "dense.gemma2",
    "gemma3": "dense.gemma3",
    "gemma3_text": "dense.gemma3",
    "gemma3n": "dense.gemma3n",
    "gemma3n_text": "dense.gemma3n",
    "gemma4": "dense.gemma4",
    "gemma4_text": "dense.gemma4",
    "gemma4_unified_text": "dense.gemma4_unified",
    "glm": "dense.glm",
    "glm4": "dense.glm4",
    "glm4_moe": "moe.glm4_moe",
    "glm4_moe_lite": "moe_latent.glm4_moe_lite",
    "glm4v": "dense.glm4",
    "glm4v_moe_text": "moe.glm4_moe",
    "glm4v_text": "dense.glm4",
    "glm_ocr_text": "dense.glm_ocr",
    "glm5_next": "moe_latent.glm5_next",
    "glm5_next_text": "moe_latent.glm5_next",
    "glm_moe_dsa": "moe_latent.glm_moe_dsa",
    "gpt": "gpt.gpt",
    "gpt-sw3": "gpt.gpt2",
    "gpt2": "gpt.gpt2",
    "gpt_bigcode": "gpt.gpt_bigcode",
    "gpt_neo": "gpt.gpt_neo",
    "gpt_neox": "gpt.gpt_neox",
    "gpt_oss": "moe.gpt_oss",
    "gpt_neox_japanese": "gpt.gpt_neox_japanese",
    "gptj": "gpt.gptj",
    "grok-1": "moe.grok",
    "grok1": "moe.grok",
    "granite": "dense.granite",
    "granite_swa": "dense.granite_swa",
    "granitemoe": "moe.granitemoe",
    "granitemoe_swa": "moe.granitemoe_swa",
    "granitemoehybrid": "hybrid.granitemoehybrid",
    "granitemoeshared": "moe.granitemoe",
    "helium": "dense.helium",
    "hunyuan": "moe.hunyuan_moe",
    "hunyuan_v1_dense": "dense.hunyuan_dense",
    "hunyuan_v1_moe": "moe.hunyuan_moe",
    "hy_v3": "moe.hy_v3",
    "hy_v4": "moe_latent.hy_v4",
    "hyperclovax": "dense.hyperclovax",
    "internlm": "dense.internlm",
    "internlm2": "dense.internlm2",
    "internlm3": "dense.internlm3",
    "iquestcoder": "dense.llama",
    "jais2": "gpt.jais2",
    "jamba": "hybrid.jamba",
    "kimi_k2": "moe_latent.deepseek_v3",
    "kimi_k25": "moe_latent.deepseek_v3",
    "kimi_linear": "hybrid.kimi_linear",
    "kolibri1": "moe.kolibri1",
    "laguna": "moe.laguna",
    "lfm2": "hybrid.lfm2",
    "lfm2_moe": "hybrid.lfm2_moe",
    "lfm3": "hybrid.lfm3",
    "llada": "dense.llada",
    "llama": "dense.llama",
    "llama4": "moe.llama4",
    "llama4_text": "moe.llama4",
    "llava": "dense.llama",
    "llava_llama": "dense.llama",
    "llava_mistral": "dense.mistral",
    "llava_qwen": "dense.qwen2",
    "longcat_flash": "moe_latent.longcat_flash",
    "mamba": "hybrid.mamba",
    "mamba2": "hybrid.mamba2",
    "mellum": "moe.mellum",
    "mimo": "dense.mimo",
    "mimo_v2_flash": "moe.mimo_v2",
    "minicpm": "dense.minicpm",
    "minicpm3": "moe_latent.minicpm3",
    "minicpmo": "remote.minicpmv",
    "minicpmv": "remote.minicpmv",
    "minimax": "hybrid.minimax",
    "minimax_m1": "hybrid.minimax",
    "minimax_m2": "moe.minimax_m2",
    "minimax_m3": "moe.minimax_m3",
    "minimax_m3_vl": "moe.minimax_m3",
    "minimax_m3_vl_text": "moe.minimax_m3",
    "minimax_text_01": "hybrid.minimax",
    "ministral": "dense.ministral",
    "ministral3": "dense.ministral3",
    "mistral": "dense.mistral",
    "mistral4": "moe_latent.mistral4",
    "mistral_large4": "moe_latent.mistral_large4",
    "mistral_large4_text": "moe_latent.mistral_large4",
    "mixtral": "moe.mixtral",
    "mllama_text_model": "dense.llama",
    "molmo": "remote.molmo",
    "molmo2_text": "remote.molmo2",
    "mpt": "gpt.mpt",
    "muse_glimmer_text": "dense.muse_glimmer",
    "nanochat": "dense.nanochat",
    "nemotron": "gpt.nemotron",
    "nemotron-nas": "dense.nemotron_nas",
    "nemotron_h": "hybrid.nemotron_h",
    "olmo": "dense.olmo",
    "olmo2": "dense.olmo2",
    "olmo3": "dense.olmo3",
    "olmo_hybrid": "hybrid.olmo_hybrid",
    "olmoe": "moe.olmoe",
    "openai-gpt": "gpt.openai_gpt",
    "opt": "gpt.opt",
    "orion": "gpt.orion",
    "paddleocr_vl": "dense.paddleocr_vl",
    "paddleocr_vl_text": "dense.paddleocr_vl",
    "persimmon": "gpt.persimmon",
    "phi": "gpt.phi",
    "phi-msft": "gpt.phi",
    "phi3": "dense.phi3",
    "phi3_v": "dense.phi3",
    "phi3small": "remote.phi3small",
    "phi4_multimodal": "dense.phi4_multimodal",
    "phi4mm": "dense.phi4_multimodal",
    "phimoe": "moe.phimoe",
    "qwen": "dense.qwen",
    "qwen2": "dense.qwen2",
    "qwen2_5_omni_text": "dense.qwen2",
    "qwen2_5_vl": "dense.qwen2",
    "qwen2_5_vl_text": "dense.qwen2",
    "qwen2_moe": "moe.qwen2_moe",
    "qwen2_vl": "dense.qwen2",
    "qwen2_vl_text": "dense.qwen2",
    "qwen3": "dense.qwen3",
    "qwen3_asr_text": "dense.qwen3",
    "qwen3_5": "hybrid.qwen3_5",
    "qwen3_5_moe": "hybrid.qwen3_5_moe",
    "qwen3_5_moe_text": "hybrid.qwen3_5_moe",
    "qwen3_5_text": "hybrid.qwen3_5",
    "qwen3_moe": "moe.qwen3_moe",
    "qwen3_next": "hybrid.qwen3_next",
    "qwen3_omni_moe_text": "moe.qwen3_moe",
    "qwen3_vl_moe_text": "moe.qwen3_moe",
    "qwen3_vl_text": "dense.qwen3",
    "rwkv5": "hybrid.rwkv5",
    "rwkv6": "hybrid.rwkv6",
    "rwkv7": "hybrid.rwkv7",
    "seed_oss": "dense.seed_oss",
    "skywork": "dense.llama",
    "smollm3": "dense.smollm3",
    "solar": "dense.llama",
    "solar_open": "moe.solar_open",
    "stablelm": "gpt.stablelm",
    "stablelm_epoch": "gpt.stablelm",
    "starcoder2": "gpt.starcoder2",
    "step3p5": "moe.step3p5",
    "step3p7": "moe.step3p5",
    "step3p7_text": "moe.step3p5",
    "transformer": "fla.transformer",
    "vaultgemma": "dense.vaultgemma",
    "xglm": "gpt.xglm",
    "yi": "dense.llama",
    "youtu": "dense.youtu",
    "zaya": "moe.zaya",
}
"""`model_type` to the file and the entry that say where its family differs, imported when a config is read."""

WHOLE: dict[str, str] = {
    "bart": "encoders.bart",
    "bert": "bidirectional.bert",
    "bert-generation": "bidirectional.bert_generation",
    "blenderbot": "encoders.pegasus",
    "camembert": "bidirectional.roberta",
    "clip": "clip.clip",
    "data2vec-text": "bidirectional.roberta",
    "deberta-v2": "bidirectional.deberta_v2",
    "distilbert": "bidirectional.distilbert",
    "electra": "bidirectional.electra",
    "ernie": "bidirectional.ernie",
    "esm": "bidirectional.esm",
    "gte": "bidirectional.gte",
    "jina_embeddings_v3": "bidirectional.jina_embeddings_v3",
    "layoutlm": "bidirectional.layoutlm",
    "longt5": "encoders.longt5",
    "m2m_100": "encoders.m2m_100",
    "marian": "encoders.marian",
    "mbart": "encoders.mbart",
    "megatron-bert": "bidirectional.normed_before",
    "modernbert": "bidirectional.modernbert",
    "modernbert-decoder": "bidirectional.modernbert_decoder",
    "mpnet": "bidirectional.mpnet",
    "mt5": "encoders.t5",
    "mvp": "encoders.bart",
    "nomic_bert": "bidirectional.nomic_bert",
    "pegasus": "encoders.pegasus",
    "plbart": "encoders.bart",
    "roberta": "bidirectional.roberta",
    "roberta-prelayernorm": "bidirectional.roberta_prelayernorm",
    "roformer": "bidirectional.roformer",
    "siglip": "clip.siglip",
    "t5": "encoders.t5",
    "t5gemma": "t5gemma.t5gemma",
    "umt5": "encoders.umt5",
    "vit": "encoders.vit",
    "whisper": "encoders.whisper",
    "xlm-roberta": "bidirectional.roberta",
    "xlm-roberta-xl": "bidirectional.normed_before",
}
"""`model_type` of models that are no stack of decoder layers to the function that reads the whole config."""

MAX_PARAMETERS = 10**16


def read_config(config: object, name: str, *, source: str = "") -> ModelSpec:
    """The model that a parsed config.json describes.

    Args:
        config: the parsed file, an object with `model_type` and the keys of its family.
        name: what to call the model.
        source: the source where the config comes from.

    Returns:
        The model; of a config with a `text_config` the text model, and a note says so. A family of unknown name is
        read by its fields, and a note says as what.

    Raises:
        InputError: if it is not the config of a model; every problem at once.
        UnsupportedError: if something the config asks for is not understood or cannot be planned.

    Source: configuration classes of github.com/huggingface/transformers, src/transformers/models.
    """
    if not isinstance(config, Mapping):
        raise InputError(
            what=f"model {name}: the config is {show(config)}",
            why="a config.json holds one JSON object",
            fix="pass the config.json next to a model's weights",
            code="MW204",
        )
    said = config.get("model_type")
    if said is None and "type_vocab_size" in config:
        said = import_module(f"{__name__}.heads").encoder_of_class(config)
    if isinstance(said, str) and said in WHOLE:
        from meshwright.formats.huggingface.tower import one_side, section

        file, _, function = WHOLE[said].partition(".")
        whole: ModelSpec = getattr(import_module(f"{__name__}.{file}"), function)(section(config, name))
        one_side(config, whole)
        if whole.head_transform:
            whole = import_module(f"{__name__}.heads").with_head_of_encoder(section(config, name), whole)
        _check_size(whole)
        return replace(whole, source=source or whole.source)
    if not isinstance(said, str) or said not in FAMILIES:
        from meshwright.formats.huggingface.refused import refuse_by_name  # most families are understood

        refuse_by_name(config, name)
    beside = with_towers_beside(config)
    vision = import_module(f"{__name__}.vision") if any(beside.get(key) is not None for key in TOWERS) else None
    text = find_text(config if vision is None else vision.without_tower(config), name, FAMILIES)
    family, called = _family(text.said)
    known = text.said in FAMILIES
    if not known:
        import_module(f"{__name__}.other_kinds").refuse_other_kind(text, name)
    of_class = text.said if text.outer is not None and not text.path.startswith(OF_MLC) else ""
    fields = Fields(text.config, name=name, family=family, outer=text.outer, path=text.path, said=of_class, known=known)
    model = read_decoder(fields, family, called)
    _check_size(model)
    towers = () if vision is None else vision.towers_of(beside, name, model.hidden)
    notes = model.notes
    if not known:
        from meshwright.formats.huggingface.generic import assumed, check_stated

        check_stated(model, text.config)
        notes = (assumed(model, text.said, FAMILIES), *notes)
    elif (named := text.config.get("model_type")) not in (None, text.said):
        notes = (f"model_type {show(named)} is unknown; its class is that of {text.said!r}", *notes)
    if text.towers and not towers:
        notes = (*notes, text_alone(config, text.path))
    if beside is not config and config.get("talker_config") is not None:
        notes = (*notes, SPEAKS)
    notes = (*notes, *stored_as(config))
    settings = config_constants(text.config, str(text.said))
    if (text.towers or towers) and isinstance(said, str):
        settings = replace(settings, seen_by=said)
    model = replace(model, source=source or model.source, notes=notes, settings=settings)
    if vision is None:
        return model
    seeing: ModelSpec = vision.with_towers(model, towers, beside)
    return seeing


def _check_size(model: ModelSpec) -> None:
    """Refuse more parameters than anybody means.

    Raises:
        InputError: it has more.
    """
    if model.parameters > MAX_PARAMETERS:
        raise InputError(
            what=f"model {model.name}: has {model.parameters:.3g} parameters",
            why=f"more than {MAX_PARAMETERS:.0e} cannot be meant",
            fix="check hidden_size, intermediate_size, num_hidden_layers and the number of experts",
            code="MW204",
        )


def _family(said: str) -> tuple[Family, str]:
    """What a `model_type` leaves unsaid, and the family's name."""
    file, _, entry = FAMILIES.get(said, "generic.generic").partition(".")
    family: Family = getattr(import_module(f"{__name__}.{file}"), entry)
    return family, entry if said in FAMILIES else said
