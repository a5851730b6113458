"""Which part of a config describes the text model, and of what family it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.errors import InputError
from meshwright.formats.huggingface.fields import show
from meshwright.formats.huggingface.spellings import SPELLINGS

TEXT_ONLY = "only the text model is planned; the other parts of the config are left out"
SPEAKS = "what speaks, beside the thinker, is left out"
PARTS = ("text_config", "llm_config", "llm_cfg", "lm_config", "language_config", "model_config")
"""Keys under which configs nest the text: of transformers, InternVL and Ovis, VILA, GLM-ASR, DeepSeek-VL, MLC."""

OF_MLC = "model_config"
"""The one of them that MLC writes, and not a configuration class of transformers."""

_ENDINGS = re.compile(r"(For[A-Z].*|(LM)?HeadModel|Model)$")
"""The end of a class name, behind the name of its family."""
SHAPE = frozenset({"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"})
"""Sizes that tell a model's shape where no `model_type` does, as in configs of Megatron and NeMo."""
NO_MODELS = frozenset({"quantization_config", "compression_config", "generation_config", "rope_config", "peft_config"})
"""Keys of objects in a config that are no parts of its model."""
TOWERS = (
    "vision_config",
    "audio_config",
    "vision_tower",
    "mm_vision_tower",
    "img_processor",
    "vit_config",
    "embd_layer",
    "vision_tower_cfg",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """The text model's part of a config."""

    said: str
    """The stated `model_type`; empty where none is stated and the sizes are those of a decoder."""
    config: Mapping[str, object]
    outer: Mapping[str, object] | None
    """The config around it, asked for what it leaves out."""
    path: str
    towers: bool
    """Whether the config holds more than the text model."""


def text_alone(config: Mapping[str, object], path: str) -> str:
    """What is said of a model whose text alone is planned, with the parts of its config that are left out.

    Args:
        config: the whole config.
        path: where the text stands in it.
    """
    kept = path.partition(".")[0]
    parts = [key for key, value in config.items() if isinstance(value, Mapping) and key != kept and value]
    named = [key for key in parts if key in TOWERS or key.endswith(("_config", "_cfg"))]
    other = [key for key in named if key not in NO_MODELS]
    return f"{TEXT_ONLY}{': ' if other else ''}{', '.join(other[:6])}"


def stored_as(config: Mapping[str, object]) -> tuple[str, ...]:
    """What is said of weights that are published in fewer bits than they are trained in.

    Args:
        config: the whole config.
    """
    record = config.get("quantization_config")
    method = record.get("quant_method") if isinstance(record, Mapping) else None
    if not isinstance(method, str):
        return ()
    return (f"weights are published as {method[:40]}: --dtype, and base= in --lora, say what they are trained in",)


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
    thinker = config.get("thinker_config")
    if isinstance(thinker, Mapping) and isinstance(thinker.get("text_config"), Mapping):
        return _of_thinker(config, find_text(thinker, name, known))
    nested = (_nested(config, key, name, known) for key in PARTS if config.get(key) is not None)
    named = next((part for part in nested if part is not None), None)
    return named or _only_decoder(config, known) or _whole(config, name, known)


def _of_thinker(config: Mapping[str, object], inner: TextPart) -> TextPart:
    """The text part of a model's thinker, as a part of the whole config."""
    # The version that saved it stands around the whole, and says whose word on tying counts.
    around = {"transformers_version": config.get("transformers_version"), **(inner.outer or {})}
    path = f"thinker_config.{inner.path}"
    return TextPart(said=inner.said, config=inner.config, outer=around, path=path, towers=True)


def _nested(config: Mapping[str, object], key: str, name: str, known: Mapping[str, str]) -> TextPart | None:
    """The text model under a key of `PARTS`; None where what stands there is no model."""
    part, said = config[key], config.get("model_type")
    if not isinstance(part, Mapping):
        what, fix = f"model {name}: {key} is {show(part)}", "pass the config.json as published"
        raise _not_a_model(what, "must be an object", fix, key)
    inner = part.get("model_type")
    if key == OF_MLC:
        if "hidden_size" not in part and "n_embd" not in part:
            return None
        chosen = inner or said
    elif isinstance(inner, str) and inner in known:
        chosen = inner
    elif inner is None and isinstance(said, str) and said in known:
        chosen = said
    else:
        of_class = _from_architecture(part, known)
        chosen = of_class if of_class in known else inner or said or of_class or _from_architecture(config, known)
    if not isinstance(chosen, str) or not chosen:
        return None
    return TextPart(said=chosen, config=part, outer=config, path=f"{key}.", towers=key != OF_MLC)


def _only_decoder(config: Mapping[str, object], known: Mapping[str, str]) -> TextPart | None:
    """The one object in a config of no known family that is a whole decoder of one, under whatever key it stands."""
    said = config.get("model_type")
    if not isinstance(said, str) or said in known or _states(config, "vocab_size"):
        return None
    parts = [(key, part) for key, part in config.items() if isinstance(part, Mapping)]
    found = [(key, part) for key, part in parts if str(part.get("model_type")) in known and _has_shape(part)]
    if len(found) != 1:
        return None
    key, part = found[0]
    return TextPart(said=str(part["model_type"]), config=part, outer=config, path=f"{key}.", towers=True)


def _has_shape(config: Mapping[str, object]) -> bool:
    """Whether it states all of `SHAPE`."""
    return all(_states(config, size) for size in SHAPE)


def _states(config: Mapping[str, object], size: str) -> bool:
    """Whether a size is stated under any of its names."""
    return any(config.get(key) is not None for key in (size, *SPELLINGS[size]))


def _whole(config: Mapping[str, object], name: str, known: Mapping[str, str]) -> TextPart:
    """A config that nests no text model: it is one itself."""
    said = config.get("model_type")
    if said is None or (isinstance(said, str) and said not in known):
        of_class = _from_architecture(config, known)
        said = of_class if said is None or of_class in known else said
    if said is None and _has_shape(config):
        return TextPart(said="", config=config, outer=None, path="", towers=False)
    if not isinstance(said, str) or not said:
        raise _of_no_family(config, name, said)
    towers = any(config.get(key) is not None for key in TOWERS)
    return TextPart(said=said, config=config, outer=None, path="", towers=towers)


def _of_no_family(config: Mapping[str, object], name: str, said: object) -> InputError:
    """What a file is that names no family, as far as it can be told."""
    schema, diffusers = config.get("schema"), config.get("_class_name")
    if isinstance(schema, str) and schema.startswith("meshwright.plan"):
        return _not_a_model(
            f"model {name} is a plan file",
            "it holds a plan, and its model with it",
            f"name it as the plan: --plan {name}.json",
            "model",
        )
    if config.get("peft_type") is not None:
        return _not_a_model(
            f"model {name} is a file of adapters ({show(config['peft_type'])})",
            "adapters have no layers of their own",
            f"pass the model that they are for{_said_of_base(config)}, with --lora {_said_of_adapters(config)}",
            "peft_type",
        )
    if isinstance(diffusers, str):
        return _not_a_model(
            f"model {name}: _class_name is {show(diffusers)}",
            "diffusers wrote this config, and diffusion models are not planned",
            "pass the config.json of a model of the transformers library, which has a model_type",
            "_class_name",
        )
    return _not_a_model(
        f"model {name}: model_type is {'missing' if said is None else show(said)}",
        "it names the family, so this is not the config.json of a model",
        "pass the config.json next to a model's weights (not that of a tokenizer or an index)",
        "model_type",
    )


def _said_of_base(config: Mapping[str, object]) -> str:
    """The model that a file of adapters names."""
    base = config.get("base_model_name_or_path")
    return f", {base[:80]}" if isinstance(base, str) and base else ""


def _said_of_adapters(config: Mapping[str, object]) -> str:
    """Adapters of a file of PEFT as the command line takes them: `r=16,targets=q_proj,v_proj`."""
    rank, targets = config.get("r"), config.get("target_modules")
    words = [f"r={rank}" if isinstance(rank, int) else "r=16"]
    if isinstance(targets, list) and targets and all(isinstance(one, str) for one in targets):
        words.append(f"targets={','.join(sorted(targets)[:12])}")
    return ",".join(words)


def _not_a_model(what: str, why: str, fix: str, field: str) -> InputError:
    return InputError(what=what, why=why, fix=fix, field=field, code="MW204")


def _from_architecture(config: Mapping[str, object], known: Mapping[str, str]) -> object:
    """The family whose class `architectures` names (LlamaForCausalLM: llama), or None."""
    names = config.get("architectures")
    first = names[0] if isinstance(names, (list, tuple)) and names else config.get("architecture")
    if not isinstance(first, str):
        return None
    plain = _ENDINGS.sub("", first).lower().replace("_", "")
    by_class = {family.replace("_", "").replace("-", ""): family for family in known}
    return by_class.get(plain, first)
