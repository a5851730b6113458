"""Overrides of Megatron-Bridge read as options of Megatron-LM."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

from meshwright.errors import Problem, nearest
from meshwright.formats.shell import Word, word
from meshwright.targets.bridge.overrides import (
    FORMATS,
    KEPT_KEY,
    KEPT_WEIGHTS,
    KEYS,
    LISTS,
    MADE,
    MADE_FLAGS,
    NARROW,
    NARROW_KEY,
    OF_MADE,
    READ,
    override_options,
)
from meshwright.targets.overrides import keyed, parted

_OF_A_PLAN = ("model.", "ddp.", "optimizer.", "train.", "comm_overlap.")
_OF_THE_RUN = re.compile(
    r"train\.(?!.*batch)|optimizer\.(?:(?:min_|decoupled_)?lr|weight_decay|adam_(?:beta1|beta2|eps)|sgd_momentum|clip_grad|loss_scale)$"
)


def of_the_run(key: str) -> bool:
    """Whether a key says how long or how fast a model learns, which no plan depends on: `train.train_iters`."""
    close = nearest(key, override_options(), count=1)
    slip = bool(close) and SequenceMatcher(None, key, close[0]).ratio() > 0.9
    return _OF_THE_RUN.match(key) is not None and not slip


_HARMLESS = frozenset(
    (
        "transformer_impl", "cross_entropy_loss_fusion", "cross_entropy_fusion_impl", "pipeline_dtype",
        "should_pad_vocab", "cuda_graph_scope", "cuda_graph_warmup_steps", "moe_router_fusion",
        "moe_permute_fusion", "moe_grouped_gemm", "moe_router_force_load_balancing", "moe_router_padding_for_fp8",
        "moe_hybridep_num_sms", "moe_aux_loss_coeff", "gradient_accumulation_fusion", "calculate_per_token_loss",
        "apply_rope_fusion", "init_method_std", "rotary_base", "rotary_percent", "bias_activation_fusion",
        "bias_dropout_fusion", "persist_layer_norm", "use_te_rng_tracker", "mtp_loss_scaling_factor",
        "moe_flex_dispatcher_num_sms", "variable_seq_lengths", "vocab_size", "params_dtype",
        "keep_mtp_spec_in_bf16", "moe_permute_fusion_into_hybridep", "deterministic_mode", "rotary_scaling_factor",
        "check_for_nan_in_grad", "moe_router_dtype", "average_in_collective", "main_params_dtype", "moe_z_loss_coeff",
        "max_position_embeddings", "hf_model_id",
    )
)  # fmt: skip
"""Last parts of keys that no plan depends on, or that the model's own configuration says."""


def without_effect(key: str, text: str) -> bool:
    """Whether a key of a configuration changes no plan: by its name, or because it is off."""
    last = key.rpartition(".")[2]
    off = text in ("null", "None", "False", "false", "none")
    if key in ("optimizer.bf16", "optimizer.fp16") or (last == "first_last_layers_bf16" and off):
        return True  # mixed_precision says the formats
    dtype = last in ("main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype") and text == "fp32"
    return last in _HARMLESS or dtype or (off and (last == "cuda_graph_impl" or last.startswith("freeze_")))


def as_made(words: Iterable[Word]) -> list[Word]:
    """Overrides of a recipe with all that its number formats set.

    Args:
        words: KEY=VALUE among others.
    """
    words = list(words)
    given = {key: one for key, one in map(parted, words) if key}
    name = given["mixed_precision"].text.strip("'\"") if "mixed_precision" in given else ""
    fields = {key: word(value) for key, value in MADE.get(name, {}).items()}
    fields |= {key.removeprefix(OF_MADE): one for key, one in given.items() if key.startswith(OF_MADE)}
    narrow = fields.get("grad_reduce_in_fp32")
    left = [one for one in words if not parted(one)[0].startswith(OF_MADE) and parted(one)[0] != NARROW_KEY]
    if narrow is not None:
        left.append(keyed(NARROW_KEY, word(narrow.text.lower(), narrow.place)))
    first = fields.get("first_last_layers_bf16")
    if first is None or first.text.lower() != "true":
        fields = {key: one for key, one in fields.items() if "bf16" not in key}
    return left + [keyed(f"{OF_MADE}{key}", one) for key, one in fields.items() if key in MADE_FLAGS]


_USUAL_FORMATS = "bf16_mixed"
"""What recipes have where nothing says otherwise."""


def flags_of(words: Iterable[Word]) -> tuple[list[Word], list[Problem]]:
    """Megatron-LM's options of overrides, each where it is written, and keys that are none.

    Args:
        words: KEY=VALUE among others.
    """
    given = {key: one for key, one in map(parted, words) if key}
    first = {keys[0] for keys in KEYS.values()}
    found: list[Word] = []
    problems: list[Problem] = []
    for key, value in given.items():
        flag = override_options().get(key)
        text = value.text.strip("'\"")
        if key == "mixed_precision" and value.unknown is None:
            meant = next(iter(nearest(text, FORMATS, count=1)), _USUAL_FORMATS)
            said = FORMATS[text if text in FORMATS else meant]
            found += [word(part, value.place) for parts in sorted(said) for part in parts if part]
            if text not in FORMATS:
                why = f"known are {', '.join(FORMATS)}"
                problems.append(Problem(what=f"mixed_precision is {text[:60]}", why=why, fix=f"use {meant}", field=key))
        elif key.startswith(OF_MADE):
            found += _words(MADE_FLAGS[key.removeprefix(OF_MADE)], word(text.lower(), value.place))
        elif key == KEPT_KEY:
            found += [word(part, value.place) for part in KEPT_WEIGHTS if text == "true"]
        elif key == NARROW_KEY:
            found += [word(NARROW[0], value.place)] if text == "false" else []
        elif flag and (key in first or key in READ or KEYS[flag][0] not in given):
            found += _words(flag, value)
        elif flag is None and key.startswith("model.freeze_") and text.lower() == "true":
            why = "weights that stay frozen have no gradients and no states, and a plan trains all of them"
            problems.append(Problem(what=f"{key} is true", why=why, fix="leave it out", field=key))
        elif flag is None and key.startswith(_OF_A_PLAN) and not of_the_run(key) and not without_effect(key, text):
            close = nearest(key, override_options())
            fix = f"did you mean {' or '.join(close)}?" if close else ""
            why = "no part of a plan is known by it"
            problems.append(Problem(what=f"{key} is not read", why=why, fix=fix, field=key))
    return found, problems


_DTYPES = {"torch.bfloat16": "bf16", "torch.float32": "fp32", "torch.float16": "fp16", "torch.uint8": "fp8"}
"""Formats as files of keys name them, and the options."""


def _words(flag: str, value: Word) -> list[Word]:
    text, name = value.text.strip("'\""), word(flag, value.place)
    if flag.endswith("-dtype") and text in _DTYPES:
        return [name, word(_DTYPES[text], value.place)]
    if value.unknown is not None:
        return [name, value]
    if text in ("null", "false", "None", "False", ""):
        return []
    if text in ("true", "True"):
        return [name]
    parts = text.strip("[]").split(",") if flag in LISTS else [text]
    return [name, *(word(part, value.place) for part in parts)]
