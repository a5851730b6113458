"""Constants of a model as Megatron-LM options: rope, norms, activation, router; what no option says is refused.

A constant that the model's config does not state is asked for when the script starts, never left to a default.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from meshwright.errors import Problem
from meshwright.specs.layers.latent_attention import LatentAttention
from meshwright.specs.model import ModelSpec
from meshwright.specs.settings import ModelSettings

if TYPE_CHECKING:
    from meshwright.formats.megatron.options import Flags, Values

_UNQUOTED = re.compile(r"[^\w .,:/+()@=-]+", re.ASCII)
# What a shell would take for more than text between double quotes: names of models are foreign text.
ASKED = "${"
"""A value that starts so is a variable that the script asks for."""
OWN_CONFIG = "use a target that loads the model's own config.json: --target automodel"
"""The remedy where no option says a part or a constant of a model."""
_GATED = {"silu": "--swiglu", "swish": "--swiglu"}
_PLAIN = {"relu2": "--squared-relu", "gelu": "", "gelu_new": "", "gelu_fast": "", "gelu_pytorch_tanh": ""}
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192.0}
"""What `--use-rope-scaling` takes; its factor alone is an option.

Source: megatron/core/models/common/embeddings/rotary_pos_embedding.py of Megatron-LM, commit d98e8a64, 2026-08.
"""


def _refusal(name: str, value: object, why: str, fix: str = "") -> Problem:
    return Problem(what=f"model: {name} is {value}", why=why, fix=fix or OWN_CONFIG, field=f"model.settings.{name}")


def settings_flags(model: ModelSpec, *, gated: bool) -> tuple[Flags, list[Problem]]:
    """Options for a model's constants, and what no option says.

    Args:
        model: a stack of causal layers.
        gated: whether its MLPs have a gate.
    """
    settings = model.settings
    flags: Flags = [
        ("--norm-epsilon", _or_asked(settings.norm_epsilon, "NORM_EPSILON", f"norm epsilon of {model.name}"))
    ]
    problems = [*_factor_problems(settings), *_activation_problems(settings, gated=gated)]
    if gated:
        flags.append(("--swiglu", ""))
    elif flag := _PLAIN.get(settings.activation or "gelu", ""):
        flags.append((flag, ""))
    if not model.learned_positions:
        latent = isinstance(next(model.layers()).attention, LatentAttention)
        rope, more = _rope_flags(model, latent=latent)
        flags, problems = [*flags, *rope], [*problems, *more]
    if model.is_moe:
        router, more = _router_flags(model)
        flags, problems = [*flags, *router], [*problems, *more]
    return flags, problems


def _or_asked(value: float | None, variable: str, what: str) -> str:
    if value is None:
        return f"{ASKED}{variable}:?{_UNQUOTED.sub('_', what)}, which the model as planned does not state}}"
    return repr(int(value)) if value == int(value) and abs(value) >= 1 else repr(value)


def _activation_problems(settings: ModelSettings, *, gated: bool) -> Iterator[Problem]:
    known = _GATED if gated else _PLAIN
    said = settings.activation
    if said is not None and said not in known:
        yield _refusal("activation", said, f"{'gated MLPs' if gated else 'MLPs'} have {', '.join(known)}")


def _factor_problems(settings: ModelSettings) -> Iterator[Problem]:
    for name in ("score_softcap", "logit_softcap"):
        if getattr(settings, name):
            yield _refusal(name, f"{getattr(settings, name):g}", "no option bounds scores or logits")
    for name, value in settings.factors:
        if value != 1:
            yield _refusal(name, f"{value:g}", "no option scales this")


def _rope_flags(model: ModelSpec, *, latent: bool) -> tuple[Flags, list[Problem]]:
    settings = model.settings
    flags: Flags = [("--rotary-base", _or_asked(settings.rope_base, "ROTARY_BASE", f"rope base of {model.name}"))]
    if settings.rope_share not in (None, 1.0) and not latent:
        flags.append(("--rotary-percent", repr(settings.rope_share)))
    kind, numbers = settings.rope_kind or "default", settings.rope_number
    if kind == "default":
        # Latent attention scales its rope by yarn unless it is told not to, and its fused rope knows yarn alone.
        return ([*flags, ("--rope-type", "rope"), ("--no-rope-fusion", "")] if latent else flags), []
    if kind == "llama3" and not latent:
        unlike = {name for name, value in _LLAMA3.items() if numbers.get(name, value) != value}
        if not unlike:
            return [*flags, ("--use-rope-scaling", ""), ("--rope-scaling-factor", repr(numbers.get("factor", 8.0)))], []
        shown = ", ".join(f"{name} {numbers[name]:g}" for name in sorted(unlike))
        return flags, [_refusal("rope_numbers", shown, f"options scale with {_LLAMA3} alone")]
    if kind == "linear" and numbers.get("factor", 0.5) == int(numbers.get("factor", 0.5)):
        return [*flags, ("--rotary-seq-len-interpolation-factor", str(int(numbers["factor"])))], []
    if kind == "yarn" and latent:
        return [*flags, *_latent_yarn(numbers)], []
    if kind == "yarn" and {"factor", "original_max_position_embeddings"} <= set(numbers):
        return flags, [_refusal("rope_kind", "yarn", "yarn outside latent attention has no option for its factor")]
    return flags, [_refusal("rope_kind", kind, "rope is plain, linear, llama3, or yarn in latent attention")]


def _latent_yarn(numbers: dict[str, float]) -> Flags:
    flags: Flags = [("--rope-type", "yarn"), ("--rotary-scaling-factor", repr(numbers.get("factor", 40.0)))]
    flags += [
        ("--mscale", repr(numbers.get("mscale", 1.0))),
        ("--mscale-all-dim", repr(numbers.get("mscale_all_dim", 0.0))),
    ]
    return flags


def _router_flags(model: ModelSpec) -> tuple[Flags, list[Problem]]:
    flags: Flags = []
    settings = model.settings
    sigmoid = settings.router_score == "sigmoid"
    if settings.router_score not in (None, "softmax", "sigmoid"):
        return flags, [_refusal("router_score", settings.router_score, "routers score by softmax or sigmoid")]
    problems = []
    if sigmoid:
        flags.append(("--moe-router-score-function", "sigmoid"))
        if settings.router_normalised is False:
            why = "weights of a sigmoid router are made to sum to 1"
            problems.append(_refusal("router_normalised", False, why))
    elif settings.router_normalised is False:
        # The softmax is over all experts, and what is picked keeps its weight.
        flags.append(("--moe-router-pre-softmax", ""))
    if settings.router_bias:
        flags.append(("--moe-router-enable-expert-bias", ""))
    if settings.router_scale not in (None, 1.0):
        flags.append(("--moe-router-topk-scaling-factor", repr(settings.router_scale)))
    return flags, problems


def settings_facts(model: ModelSpec) -> dict[str, object]:
    """Constants of a model as `read_constants` words them, those that it states."""
    settings = model.settings
    found = {
        "norm_epsilon": settings.norm_epsilon,
        "rope_base": None if model.learned_positions else settings.rope_base,
        "rope_scaling": None if settings.rope_base is None or model.learned_positions else _scaling(settings),
        "router_score": (settings.router_score or "softmax") if model.is_moe and settings.rope_base else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _scaling(settings: ModelSettings) -> str:
    kind = settings.rope_kind or "default"
    return {"llama3": "llama3", "yarn": "yarn", "linear": "linear"}.get(kind, "none")


def read_constants(values: Values) -> dict[str, object]:
    """Constants that options ask for, their defaults filled in; None for what the script leaves to a variable."""
    learned = values.text("--position-embedding-type", "learned_absolute") == "learned_absolute"
    found: dict[str, object] = {"norm_epsilon": _stated(values, "--norm-epsilon", 1e-5)}
    if not learned or values.has("--use-rotary-position-embeddings"):
        latent = values.has("--multi-latent-attention")
        yarn = values.text("--rope-type", "yarn" if latent else "rope") == "yarn"
        linear = values.whole("--rotary-seq-len-interpolation-factor", 1) > 1
        found["rope_base"] = _stated(values, "--rotary-base", 10000.0)
        found["rope_scaling"] = (
            "llama3" if values.has("--use-rope-scaling") else "yarn" if yarn else "linear" if linear else "none"
        )
    if values.has("--num-experts"):
        found["router_score"] = values.text("--moe-router-score-function", "softmax")
    return found


def _stated(values: Values, flag: str, default: float) -> float | None:
    return None if flag in values.hidden or values.given.get(flag) == ("",) else values.number(flag, default)
