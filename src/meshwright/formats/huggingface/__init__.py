"""Models from Hugging Face config.json: each family is one function that says where it differs from Llama.

Keys and what a missing one means follow the configuration classes of the transformers library; where a class would
fill in the shape of some other model (its hidden size, its layers), the key must be there instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module

from meshwright.errors import InputError, Problem, UnsupportedError, nearest
from meshwright.formats.huggingface.decoder import DecoderFamily
from meshwright.formats.huggingface.fields import Fields, show
from meshwright.specs.model import ModelSpec

__all__ = ["FAMILIES", "read_config"]

FAMILIES: dict[str, str] = {
    "bloom": "gpt.bloom",
    "deepseek_v2": "moe.deepseek_v2",
    "deepseek_v3": "moe.deepseek_v3",
    "falcon": "gpt.falcon",
    "gemma": "dense.gemma",
    "gemma2": "dense.gemma2",
    "gemma3": "dense.gemma3",
    "gemma3_text": "dense.gemma3",
    "gpt": "gpt.gpt",
    "gpt2": "gpt.gpt2",
    "gpt_neox": "gpt.gpt_neox",
    "gpt_oss": "moe.gpt_oss",
    "kimi_k2": "moe.deepseek_v3",
    "llama": "dense.llama",
    "llama4": "moe.llama4",
    "llama4_text": "moe.llama4",
    "mistral": "dense.mistral",
    "mixtral": "moe.mixtral",
    "opt": "gpt.opt",
    "phi": "gpt.phi",
    "phi3": "dense.phi3",
    "phimoe": "moe.phimoe",
    "qwen2": "dense.qwen2",
    "qwen2_moe": "moe.qwen2_moe",
    "qwen3": "dense.qwen3",
    "qwen3_moe": "moe.qwen3_moe",
}
"""`model_type` to the function that reads it, imported when a config of its family is read."""

MAX_PARAMETERS = 10**16
TEXT_ONLY = "only the text model is planned; the other parts of the config are left out"


def read_config(config: object, name: str, *, source: str = "") -> ModelSpec:
    """The model that a parsed config.json describes.

    Args:
        config: the parsed file, an object with `model_type` and the keys of its family.
        name: what to call the model.
        source: where the config comes from.

    Returns:
        The model; of a config with a `text_config` the text model, and a note says so.

    Raises:
        InputError: if it is not the config of a model; every problem at once.
        UnsupportedError: if the family, or something the config asks of it, is unknown here.

    Source: configuration classes of github.com/huggingface/transformers, src/transformers/models.
    """
    if not isinstance(config, Mapping):
        raise InputError(
            Problem(
                what=f"model {name}: the config is {show(config)}",
                why="a config.json holds one JSON object",
                fix="pass the config.json that lies beside a model's weights",
            ),
            code="MW204",
        )
    family, inner = _family(config, name)
    path = "" if inner is None else "text_config."
    fields = Fields(config if inner is None else inner, name=name, outer=None if inner is None else config, path=path)
    file, function = FAMILIES[family].split(".")
    decoder: DecoderFamily = getattr(import_module(f"{__name__}.{file}"), function)(fields)
    model = decoder.model(fields, function)
    if model.parameters > MAX_PARAMETERS:
        raise InputError(
            Problem(
                what=f"model {name}: has {model.parameters:.3g} parameters",
                why=f"more than {MAX_PARAMETERS:.0e} cannot be meant",
                fix="check hidden_size, intermediate_size, num_hidden_layers and the number of experts",
            ),
            code="MW204",
        )
    notes = model.notes if inner is None else (*model.notes, TEXT_ONLY)
    return replace(model, source=source or model.source, notes=notes)


def _family(config: Mapping[str, object], name: str) -> tuple[str, Mapping[str, object] | None]:
    """The family to read, and the nested text config where there is one."""
    said = config.get("model_type")
    text = config.get("text_config")
    if text is not None and not isinstance(text, Mapping):
        problem = Problem(
            what=f"model {name}: text_config is {show(text)}",
            why="must be an object",
            fix="pass the config.json as published",
            field="text_config",
        )
        raise InputError(problem, code="MW204")
    if text is not None:
        inner = text.get("model_type")
        if isinstance(inner, str) and inner in FAMILIES:
            return inner, text
        if inner is None and isinstance(said, str) and said in FAMILIES:
            return said, text
        said = inner or said
    if said is None:
        said = _from_architecture(config)
    if not isinstance(said, str) or not said:
        schema = config.get("schema")
        if isinstance(schema, str) and schema.startswith("meshwright.plan"):
            problem = Problem(
                what=f"model {name} is a plan file",
                why="it holds a plan, and its model with it",
                fix=f"name it as the plan: --plan {name}.json",
                field="model",
            )
            raise InputError(problem, code="MW204")
        problem = Problem(
            what=f"model {name}: model_type is {'missing' if said is None else show(said)}",
            why="it names the family, so this is not the config.json of a model",
            fix="pass the config.json that lies beside a model's weights (not that of a tokenizer or an index)",
            field="model_type",
        )
        raise InputError(problem, code="MW204")
    if said not in FAMILIES:
        close = nearest(said, FAMILIES)
        problem = Problem(
            what=f"model {name}: unknown family {show(said)}",
            why="no reader for this model_type",
            fix=(f"nearest known: {', '.join(close)}; " if close else "") + f"known: {', '.join(sorted(FAMILIES))}",
            field="model_type",
        )
        raise UnsupportedError(problem, code="MW401")
    return said, None


def _from_architecture(config: Mapping[str, object]) -> object:
    """The family whose class `architectures` names (LlamaForCausalLM: llama), or None."""
    names = config.get("architectures")
    first = names[0] if isinstance(names, (list, tuple)) and names else None
    if not isinstance(first, str):
        return None
    plain = first.partition("For")[0].lower()
    by_class = {family.replace("_", ""): family for family in FAMILIES}
    by_class["gpt2lmheadmodel"] = "gpt2"
    return by_class.get(plain, first)
