"""Which part of a config describes the text model, and of what family it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.errors import InputError
from meshwright.formats.huggingface.fields import show
from meshwright.formats.huggingface.spellings import SPELLINGS

TEXT_ONLY = "only the text model is planned; the other parts of the config are left out"
SPEAKS = "what speaks, beside the thinker, is left out"
PARTS = ("text_config", "llm_config", "language_config", "model_config")
"""Keys under which configs nest the text model: of transformers, InternVL and Ovis, DeepSeek-VL and Janus, MLC."""

SHAPE = frozenset({"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"})
"""Sizes that tell a model's shape where no `model_type` does, as in configs of Megatron and NeMo."""
TOWERS = (
    "vision_config",
    "audio_config",
    "vision_tower",
    "mm_vision_tower",
    "img_processor",
    "vit_config",
    "embd_layer",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """The text model's part of a config."""

    said: str
    """Its `model_type`; empty where none is said and the sizes of a decoder are."""
    config: Mapping[str, object]
    outer: Mapping[str, object] | None
    """The config around it, asked for what it leaves out."""
    path: str
    towers: bool
    """Whether the config holds more than the text model."""


def with_towers_beside(config: Mapping[str, object]) -> Mapping[str, object]:
    """The part of a config that has the towers: the thinker's of a model that also speaks, else all of it.

    Args:
        config: the whole config.
    """
    thinker = config.get("thinker_config")
    if isinstance(thinker, Mapping) and isinstance(thinker.get("text_config"), Mapping):
        return {"model_type": config.get("model_type"), **thinker}
    return config


def find_text(config: Mapping[str, object], name: str, known: Mapping[str, str]) -> TextPart:
    """The part that describes the text model.

    Args:
        config: the whole config.
        name: what the model is called.
        known: the families that are known.

    Raises:
        InputError: if it is not the config of a model.
    """
    said = config.get("model_type")
    thinker = config.get("thinker_config")
    if isinstance(thinker, Mapping) and isinstance(thinker.get("text_config"), Mapping):
        inner = find_text(thinker, name, known)
        # The version that saved it stands around the whole, and says whose word on tying counts.
        around = {"transformers_version": config.get("transformers_version"), **(inner.outer or {})}
        return TextPart(
            said=inner.said, config=inner.config, outer=around, path=f"thinker_config.{inner.path}", towers=True
        )
    for key in PARTS:
        part = config.get(key)
        if part is None:
            continue
        if not isinstance(part, Mapping):
            raise _not_a_model(
                f"model {name}: {key} is {show(part)}", "must be an object", "pass the config.json as published", key
            )
        inner_said = part.get("model_type")
        if key == "model_config":
            if "hidden_size" not in part and "n_embd" not in part:
                continue
            chosen = inner_said or said
        elif isinstance(inner_said, str) and inner_said in known:
            chosen = inner_said
        elif inner_said is None and isinstance(said, str) and said in known:
            chosen = said
        else:
            chosen = inner_said or said or _from_architecture(part, known) or _from_architecture(config, known)
        if isinstance(chosen, str) and chosen:
            return TextPart(said=chosen, config=part, outer=config, path=f"{key}.", towers=key != "model_config")
    if said is None:
        said = _from_architecture(config, known)
    if said is None and {first for first in SHAPE if any(key in config for key in (first, *SPELLINGS[first]))} >= SHAPE:
        return TextPart(said="", config=config, outer=None, path="", towers=False)
    if not isinstance(said, str) or not said:
        schema = config.get("schema")
        if isinstance(schema, str) and schema.startswith("meshwright.plan"):
            raise _not_a_model(
                f"model {name} is a plan file",
                "it holds a plan, and its model with it",
                f"name it as the plan: --plan {name}.json",
                "model",
            )
        diffusers = config.get("_class_name")
        if isinstance(diffusers, str):
            raise _not_a_model(
                f"model {name}: _class_name is {show(diffusers)}",
                "diffusers wrote this config, and diffusion models are not planned",
                "pass the config.json of a model of the transformers library, which has a model_type",
                "_class_name",
            )
        raise _not_a_model(
            f"model {name}: model_type is {'missing' if said is None else show(said)}",
            "it names the family, so this is not the config.json of a model",
            "pass the config.json that lies beside a model's weights (not that of a tokenizer or an index)",
            "model_type",
        )
    return TextPart(
        said=said, config=config, outer=None, path="", towers=any(config.get(key) is not None for key in TOWERS)
    )


def _not_a_model(what: str, why: str, fix: str, field: str) -> InputError:
    return InputError(what=what, why=why, fix=fix, field=field, code="MW204")


def _from_architecture(config: Mapping[str, object], known: Mapping[str, str]) -> object:
    """The family whose class `architectures` names (LlamaForCausalLM: llama), or None."""
    names = config.get("architectures")
    first = names[0] if isinstance(names, (list, tuple)) and names else None
    if not isinstance(first, str):
        return None
    plain = first.partition("For")[0].lower()
    by_class = {family.replace("_", ""): family for family in known}
    by_class["gpt2lmheadmodel"] = "gpt2"
    return by_class.get(plain, first)
