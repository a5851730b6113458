"""The model of Galvatron's trainer: by a YAML of its sizes that the trainer's own names, or by a name.

What the trainer's YAML says itself stands over the other; parts of the architecture are always those of the other.

Source: galvatron/utils/hf_config_adapter.py and core/runtime/args_schema.py of hetu-galvatron (2026-11).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from meshwright.errors import InputError, Problem, UnsupportedError
from meshwright.formats.huggingface import read_config
from meshwright.library import models
from meshwright.specs.model import ModelSpec
from meshwright.targets.contract import Files, text_beside
from meshwright.targets.key_texts import Keys, table_of
from meshwright.targets.keys import KeyReader

_M = "model."
_PATH = re.compile(r"^[ \t]*model_config_path[ \t]*:[ \t]*[\"']?([^\s\"'#$]+)", re.MULTILINE)
_ELSEWHERE = re.compile(r"^[ \t]*model_config_path[ \t]*:[ \t]*[\"']?(\$\{[\w.]+\})", re.MULTILINE)
_MEANT = re.compile(r"\$\{([\w.]+)\}")
_OWN_PARTS = (
    *("normalization", "activation_func", "gated_linear_unit", "position_embedding_type", "apply_rope_fusion"),
    *("add_bias_linear", "add_qkv_bias", "untie_embeddings_and_output_weights"),
)
"""What the YAML of sizes says whatever the trainer's own says."""
_KEPT: dict[str, object] = {
    "norm_epsilon": 1e-5,
    "rotary_base": 10000,
    "rotary_percent": 1.0,
    "rotary_interleaved": False,
    "qk_layernorm": False,
    "moe_router_topk": 2,
    "make_vocab_size_divisible_by": 128,
}
"""What the trainer's own YAML alone sets, with its defaults: its adapter fills in only what has none."""
_NEVER = ("multi_latent_attention", "is_moe_model", "layernorm_epsilon")
"""Keys of a model that its adapter takes from the trainer's own YAML alone, if at all."""
_NAMED = ("model_size", "hf_model_name_or_path")
_NEEDED = ("hidden_size", "num_layers", "num_attention_heads", "vocab_size")
_DEFAULTS = {
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "position_embedding_type": "rope",
    "untie_embeddings_and_output_weights": True,
    "moe_router_topk": 2,
}
_SHARED, _GROUPS = "moe_shared_expert_intermediate_size", "num_query_groups"
_READ = (
    *(*_NAMED, *_NEEDED, *_DEFAULTS, _SHARED, _GROUPS, "num_moe_experts", "moe_ffn_hidden_size", "ffn_hidden_size"),
    *("add_bias_linear", "add_qkv_bias", "qk_layernorm", "multi_latent_attention", "kv_channels"),
    *("rotary_base", "norm_epsilon"),
)
"""Keys that a model is built of."""
_FIX = "name the model before the file: check MODEL FILE"
_DEEPEST = 16
"""Keys that stand for one another."""


def named(text: str) -> tuple[str, ...]:
    """Paths of the YAML of sizes that the trainer's names.

    Args:
        text: the trainer's YAML.
    """
    paths = _PATH.findall(text)
    if elsewhere := _ELSEWHERE.findall(text):
        try:
            whole = table_of(text, "YAML", "configuration of Galvatron's trainer")
        except (InputError, UnsupportedError):  # told by who reads it
            whole = {}
        paths += [path for path in (_followed(whole, one) for one in elsewhere) if not _MEANT.search(path)]
    return tuple(path for path in paths if path.lower() not in ("null", "none", "~"))


def model_of(
    reader: KeyReader, whole: Keys, files: Files, seq_len: int | None
) -> tuple[ModelSpec | None, dict[str, Any], Problem | None]:
    """The model of the trainer's YAML, or facts of one that only a name says; and the question for what is missing.

    Args:
        reader: keys of the trainer's YAML.
        whole: the table that they are in, with the paths that they may stand for.
        files: the files of the run.
        seq_len: tokens of a sequence, as far as it is known.
    """
    path = reader.get(f"{_M}model_config_path")
    if path is not None:
        path = _followed(whole, str(path))
        text = text_beside(files, PurePath(path).name)
        if text is None:
            why = "it says the sizes of the model, and is not beside the file that names it"
            return None, {}, Problem(what=f"{path[:80]} is not here", why=why, fix="put it there", field="model")
        return _described(reader, table_of(text, "YAML", "model of Galvatron's trainer"), seq_len), {}, None
    name = reader.get(f"{_M}hf_model_name_or_path") or reader.get(f"{_M}model_size")
    if reader.get(f"{_M}set_model_config_manually") in (1, True):
        why = "the sizes of the model are set one by one, which is not read"
        reader.refuse(f"{_M}set_model_config_manually", 1, why, _FIX)
    elif name and reader.get(f"{_M}set_layernum_manually") in (1, True) and reader.get(f"{_M}num_layers"):
        layers = reader.degree(f"{_M}num_layers")
        known = models.find_name(str(name))
        if known is None:
            return None, {"name": str(name), "num_layers": layers}, None
        return with_layers(models.spec(known), layers), {}, None
    return None, {"name": str(name)} if name else {}, None


def with_layers(model: ModelSpec, layers: int) -> ModelSpec:
    """A model with another number of layers: fewer are its first ones, more have its last one again.

    Args:
        model: the whole model.
        layers: the number of layers, at least 1.
    """
    if layers == model.num_layers:
        return model
    runs, left = [], layers
    for run in model.runs:
        size = len(run.layers)
        times = min(run.repeats, left // size)
        runs += [replace(run, repeats=times)] if times else []
        rest = 0 if times == run.repeats else min(size, left - times * size)
        runs += [replace(run, layers=run.layers[:rest], repeats=1)] if rest else []
        left -= times * size + rest
    if left:
        runs.append(replace(model.runs[-1], layers=model.runs[-1].layers[-1:], repeats=left))
    note = f"{layers} layers, {model.name} has {model.num_layers}"
    return replace(model, name=f"{model.name} of {layers} layers", runs=tuple(runs), notes=(*model.notes, note))


def _followed(table: Mapping[str, Any], path: str) -> str:
    """What a path stands for that may be `${...}`, the name of another key; itself where that says nothing."""
    for _ in range(_DEEPEST):
        meant = _MEANT.fullmatch(path)
        found = None if meant is None else _value(table, meant[1])
        if not isinstance(found, str):
            break
        path = found
    return path


def _value(table: Mapping[str, Any], path: str) -> Any:
    """What a dotted path names in a table; None where there is nothing."""
    found: Any = table
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _described(reader: KeyReader, sizes: Keys, seq_len: int | None) -> ModelSpec | None:
    """The model of a YAML of sizes; a problem and None where a part of it is none that is built here."""
    own = {name: reader.get(f"{_M}{name}") for name in dict.fromkeys((*sizes, *_READ))}
    given = {name: value for name, value in own.items() if value is not None}
    sizes = {name: value for name, value in sizes.items() if value is not None}
    ignored = tuple(_ignored(sizes, given))
    sizes = {name: value for name, value in sizes.items() if name not in (*_KEPT, *_NEVER)}
    said = {**_DEFAULTS, **sizes, **given, **{name: sizes[name] for name in _OWN_PARTS if name in sizes}}
    name = str(said.get("model_size") or said.get("hf_model_name_or_path") or "model of Galvatron's trainer")
    if missing := [one for one in _NEEDED if not isinstance(said.get(one), int)]:
        reader.refuse(f"{_M}{missing[0]}", said.get(missing[0]), f"{', '.join(missing)} must be whole numbers", _FIX)
        return None
    family = _family(said)
    if family is None:
        parts = f"{said['normalization']}, {said['position_embedding_type']} and these biases together"
        reader.refuse(f"{_M}model_config_path", name, f"{parts} make no layer that is known", _FIX)
        return None
    if _refused(reader, said, family):
        return None
    inner = said.get("ffn_hidden_size") or said.get("moe_ffn_hidden_size")
    config = {
        "model_type": family,
        "hidden_size": said["hidden_size"],
        "num_hidden_layers": said["num_layers"],
        "num_attention_heads": said["num_attention_heads"],
        "num_key_value_heads": said.get(_GROUPS) or said["num_attention_heads"],
        "intermediate_size": inner or 4 * said["hidden_size"],
        "vocab_size": said["vocab_size"],
        "max_position_embeddings": seq_len or 4096,
        "tie_word_embeddings": not said["untie_embeddings_and_output_weights"],
        "rope_theta": _number(reader, said, "rotary_base", 10000.0),
        "rms_norm_eps": _number(reader, said, "norm_epsilon", 1e-5),
    }
    if said.get("kv_channels"):
        config["head_dim"] = said["kv_channels"]
    if family == "mixtral":
        config |= {
            "num_local_experts": said["num_moe_experts"],
            "num_experts_per_tok": said["moe_router_topk"],
            "intermediate_size": said.get("moe_ffn_hidden_size") or inner,
        }
    model = read_config(config, name, source="YAML of Galvatron's trainer")
    return replace(model, notes=(*model.notes, *ignored)) if ignored else model


def _ignored(sizes: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[str]:
    """Says what of a YAML of sizes the trainer does not take from there."""
    for name, value in sizes.items():
        kept = given.get(name, _KEPT.get(name, False))
        if (name in _NEVER and value) or (name in _KEPT and not _alike(value, kept)):
            yield f"{name} {value} of the YAML of sizes is not taken: the trainer keeps {kept}, as its own YAML has it"


def _alike(one: object, other: object) -> bool:
    """Whether two values are the same, of which YAML may hold one as text (1e-5)."""
    try:
        return float(str(one)) == float(str(other))
    except ValueError:
        return str(one).lower() == str(other).lower()


def _refused(reader: KeyReader, said: Mapping[str, Any], family: str) -> bool:
    """Whether a part is said that layers of the family are built without; with the problem."""
    if said.get("num_moe_experts") and said.get(_SHARED):
        why = "experts beside a shared one are not built of a YAML of sizes"
        reader.refuse(f"{_M}{_SHARED}", said[_SHARED], why, _FIX)
        return True
    heads = said["num_attention_heads"]
    if family == "gpt2" and said.get(_GROUPS) not in (None, heads):
        why = f"layers with LayerNorm and learned positions have keys and values of all {heads} heads here"
        reader.refuse(f"{_M}{_GROUPS}", said[_GROUPS], why, f"use {heads}, or {_FIX}")
        return True
    return False


def _number(reader: KeyReader, said: Mapping[str, Any], name: str, default: float) -> float:
    """A number above 0, which YAML may hold as text (1e-5); a problem and the default otherwise."""
    value = said.get(name, default)
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isfinite(number) and number > 0:
        return number
    reader.refuse(f"{_M}{name}", value, "must be a number above 0", f"leave it out for {default:g}")
    return default


def _family(said: Mapping[str, Any]) -> str | None:
    """The family of models that has such layers; None where none has."""
    biased, narrow = bool(said.get("add_bias_linear")), bool(said.get("add_qkv_bias"))
    if said["normalization"] == "LayerNorm" and said["position_embedding_type"] == "learned_absolute":
        return "gpt2" if biased and not said["gated_linear_unit"] and not said.get("num_moe_experts") else None
    if said["normalization"] != "RMSNorm" or said["position_embedding_type"] != "rope" or biased:
        return None
    if not said["gated_linear_unit"] or said.get("multi_latent_attention"):
        return None
    if said.get("num_moe_experts"):
        return None if narrow or said.get("qk_layernorm") else "mixtral"
    if said.get("qk_layernorm"):
        return None if narrow else "qwen3"
    return "qwen2" if narrow else "llama"
