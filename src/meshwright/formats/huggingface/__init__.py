"""Models from Hugging Face config.json: a table from family to reader.

Keys and what a missing one means follow the configuration classes of the transformers library; where a class would
fill in the shape of some other model (its hidden size, its layers), the key must be there instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module

from meshwright.errors import InputError, Problem, UnsupportedError, nearest
from meshwright.formats.huggingface.fields import Fields, show
from meshwright.specs.model import ModelSpec

__all__ = ["FAMILIES", "read_config"]


def _late(place: str) -> Callable[[Fields], ModelSpec]:
    """The reader `file.function`, imported when a config of its family is read."""
    file, function = place.split(".")

    def read(fields: Fields) -> ModelSpec:
        found: ModelSpec = getattr(import_module(f"{__name__}.{file}"), function)(fields)
        return found

    return read


FAMILIES: dict[str, Callable[[Fields], ModelSpec]] = {
    "bloom": _late("gpt.read_bloom"),
    "deepseek_v2": _late("deepseek.read_deepseek_v2"),
    "deepseek_v3": _late("deepseek.read_deepseek_v3"),
    "falcon": _late("gpt.read_falcon"),
    "gemma": _late("dense.read_gemma"),
    "gemma2": _late("dense.read_gemma2"),
    "gemma3": _late("dense.read_gemma3"),
    "gemma3_text": _late("dense.read_gemma3"),
    "gpt": _late("gpt.read_gpt"),
    "gpt2": _late("gpt.read_gpt2"),
    "gpt_neox": _late("gpt.read_gpt_neox"),
    "gpt_oss": _late("moe.read_gpt_oss"),
    "kimi_k2": _late("deepseek.read_deepseek_v3"),
    "llama": _late("dense.read_llama"),
    "llama4": _late("moe.read_llama4"),
    "llama4_text": _late("moe.read_llama4"),
    "mistral": _late("dense.read_mistral"),
    "mixtral": _late("moe.read_mixtral"),
    "opt": _late("gpt.read_opt"),
    "phi": _late("gpt.read_phi"),
    "phi3": _late("dense.read_phi3"),
    "phimoe": _late("moe.read_phimoe"),
    "qwen2": _late("dense.read_qwen2"),
    "qwen2_moe": _late("moe.read_qwen2_moe"),
    "qwen3": _late("dense.read_qwen3"),
    "qwen3_moe": _late("moe.read_qwen3_moe"),
}
"""`model_type` to reader; one line and one function teach a new family."""

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
    model = FAMILIES[family](fields)
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
            fix=(f"nearest known: {', '.join(close)}; " if close else "") + f"known: {', '.join(FAMILIES)}",
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
