"""Constants of a model from its config.json, under the many names that families have for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.errors import InputError, Problem
from meshwright.specs.settings import ModelSettings

_ROPE_BASE = ("rope_theta", "rotary_emb_base", "rope_base", "rope_pct_theta")
_EPSILON = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_eps", "norm_epsilon")
_ACTIVATION = ("hidden_activation", "hidden_act", "activation_function", "mlp_hidden_act", "activation")
_SHARE = ("partial_rotary_factor", "rotary_pct")
_FACTORS = (
    "query_pre_attn_scalar",
    "embedding_multiplier",
    "residual_multiplier",
    "attention_multiplier",
    "logits_scaling",
    "logit_scale",
    "scale_emb",
    "scale_depth",
    "dim_model_base",
    "clip_qkv",
)
_ROUTER_SCALE = ("routed_scaling_factor", "route_scale", "moe_router_scaling_factor")
_SCORE_SOFTCAP = ("attn_logit_softcapping",)
_LOGIT_SOFTCAP = ("final_logit_softcapping", "logits_soft_cap")
_NUMBERS = (*_ROPE_BASE, *_EPSILON, *_SHARE, *_FACTORS, *_ROUTER_SCALE, *_SCORE_SOFTCAP, *_LOGIT_SOFTCAP)
_SCORES = ("scoring_func", "score_function", "moe_router_activation_func")
_MOST = 1e300
"""Larger numbers are none that anything is scaled by."""
_WHOLE_FILE = ("architectures", "transformers_version", "torch_dtype", "dtype", "auto_map")
"""Keys of files as people publish them; where they are, what else is missing is what its class takes."""


def config_constants(config: Mapping[str, Any], said: str) -> ModelSettings:
    """The constants that a config states, or that its class takes where it is a whole file.

    Args:
        config: the configuration of the text model.
        said: its `model_type`.

    Raises:
        InputError: numbers that nothing is scaled by.

    Source: class defaults of transformers 5.23.0, in class_defaults.tsv.
    """
    whole = any(key in config for key in _WHOLE_FILE)
    activation, epsilon, base = _class_defaults().get(said, (None, None, None))
    ropes = config.get("rope_parameters")
    rope = ropes if isinstance(ropes, Mapping) else config.get("rope_scaling")
    rope = rope if isinstance(rope, Mapping) else {}
    problems = [
        *_wild(config, "", _NUMBERS),
        *_wild(rope, "rope_parameters." if rope is ropes else "rope_scaling.", rope),
    ]
    if problems:
        raise InputError(problems, code="MW204")
    by_layer = any(isinstance(value, Mapping) for value in rope.values())
    stated = _number(config, *_ROPE_BASE) if not rope.get("rope_theta") else _number(rope, "rope_theta")
    kind = "by layer" if by_layer else str(rope.get("rope_type") or rope.get("type") or "default")
    rope_known = stated is not None or whole
    score = next((config[key] for key in _SCORES if config.get(key)), None)
    normalised = config.get("norm_topk_prob")
    return ModelSettings(
        rope_base=stated if stated is not None or not whole else base,
        rope_kind=kind if rope_known or rope else None,
        rope_numbers=tuple(
            sorted(
                (str(name), float(value))
                for name, value in rope.items()
                if name != "rope_theta" and isinstance(value, int | float)
            )
        ),
        rope_share=_number(config, *_SHARE) or _number(rope, *_SHARE),
        norm_epsilon=_number(config, *_EPSILON) or (epsilon if whole else None),
        activation=next((str(config[key]) for key in _ACTIVATION if isinstance(config.get(key), str)), activation),
        router_score=str(score) if score else None,
        router_bias=config.get("topk_method") == "noaux_tc" or bool(config.get("moe_router_enable_expert_bias")),
        router_scale=_number(config, *_ROUTER_SCALE),
        router_normalised=bool(normalised) if normalised is not None else None,
        score_softcap=_number(config, *_SCORE_SOFTCAP),
        logit_softcap=_number(config, *_LOGIT_SOFTCAP),
        factors=tuple((name, number) for name in _FACTORS if (number := _number(config, name)) is not None),
    )


def _wild(table: Mapping[str, Any], prefix: str, names: Iterable[str]) -> Iterator[Problem]:
    """Numbers of a table that are not finite or too large for a float."""
    for name in names:
        value = table.get(name)
        if isinstance(value, int | float) and not abs(value) < _MOST:
            why = f"must be a number below {_MOST:g}"
            yield Problem(
                what=f"{prefix}{name} is {value!r:.40}", why=why, fix="write the number of the model", field=name
            )


def _number(config: Mapping[str, Any], *names: str) -> float | None:
    for name in names:
        value = config.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None


@cache
def _class_defaults() -> dict[str, tuple[str | None, float | None, float | None]]:
    found = {}
    for line in Path(__file__).with_name("class_defaults.tsv").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            name, activation, epsilon, base = line.split("\t")
            numbers = (float(epsilon) if epsilon else None, float(base) if base else None)
            found[name] = (activation or None, *numbers)
    return found


@cache
def class_sizes(said: str) -> Mapping[str, int]:
    """Whole numbers of a configuration class, which files that transformers saves leave out of nested configs.

    Args:
        said: its `model_type`.

    Source: fields of the configuration classes of transformers 5.24.0, in class_sizes.tsv.
    """
    for line in Path(__file__).with_name("class_sizes.tsv").read_text(encoding="utf-8").splitlines():
        name, _, sizes = line.partition("\t")
        if name == said:
            pairs = (pair.split("=") for pair in sizes.split())
            return {key: int(value) for key, value in pairs}
    return {}
