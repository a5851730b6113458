"""Options of Megatron-Bridge's launchers that stand for overrides, and adapters that overrides say.

Source: scripts/performance/argument_parser.py and utils/overrides.py, scripts/training/run_recipe.py and
megatron/bridge/peft of Megatron-Bridge, commit 067f987d (2026-08).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from meshwright.errors import Problem
from meshwright.formats.shell import Word, word
from meshwright.library import models
from meshwright.targets.overrides import keyed, parsed_word

if TYPE_CHECKING:
    from meshwright.formats.shell import Launch

_BACKEND = "--moe_flex_dispatcher_backend"
_SIZES = {
    ("-tp", "--tensor_model_parallel_size"): "model.tensor_model_parallel_size",
    ("-pp", "--pipeline_model_parallel_size"): "model.pipeline_model_parallel_size",
    ("-cp", "--context_parallel_size"): "model.context_parallel_size",
    ("-vp", "--virtual_pipeline_model_parallel_size"): "model.virtual_pipeline_model_parallel_size",
    ("-ep", "--expert_model_parallel_size"): "model.expert_model_parallel_size",
    ("-et", "--expert_tensor_parallel_size"): "model.expert_tensor_parallel_size",
    ("-gb", "--global_batch_size"): "train.global_batch_size",
    ("-mb", "--micro_batch_size"): "train.micro_batch_size",
    ("-sl", "--seq_length"): "model.seq_length",
    ("--pipeline_model_parallel_layout",): "model.pipeline_model_parallel_layout",
    ("--recompute_modules",): "model.recompute_modules",
    ("--recompute_num_layers",): "model.recompute_num_layers",
    (_BACKEND,): "model.moe_flex_dispatcher_backend",
}
_KEYS = {option: key for options, key in _SIZES.items() for option in options}
_RECOMPUTED = {
    "--recompute_modules": (("model.recompute_granularity", "selective"),),
    "--recompute_num_layers": (("model.recompute_granularity", "full"), ("model.recompute_method", "block")),
}
"""What these options set besides. Source: _set_recompute_overrides of scripts/performance/utils/overrides.py."""
_SWITCHES = {
    "--use_megatron_fsdp": ("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp"),
    "--moe_a2a_overlap": ("comm_overlap.overlap_moe_expert_parallel_comm",),
}
_FORMATS = {
    "bf16": "bf16_mixed",
    "fp8_cs": "bf16_with_fp8_current_scaling_mixed",
    "fp8_sc": "bf16_with_fp8_subchannel_scaling_mixed",
    "fp8_mx": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
"""Number formats of `--compute_dtype`."""
_BY_PERFORMANCE = ("run_script.py", "setup_experiment.py", "bootstrap.py")
"""Ends of programs that cut sequences wherever tensors are cut."""
PROGRAMS = (*_BY_PERFORMANCE, "run_recipe.py")


def option_keys(option: str) -> bool:
    """Whether an option stands for an override."""
    return option.partition("=")[0] in _KEYS


def _off(said: str) -> bool:
    return said.lower() in ("false", "f", "no", "n", "0")


def _following(words: Sequence[Word], at: int) -> str:
    """The word behind one; nothing behind the last."""
    return words[at + 1].text if at + 1 < len(words) else ""


def as_overrides(launch: Launch) -> list[Word]:
    """The words of a command, those options that stand for overrides as these; what is said by KEY=VALUE goes first."""
    options, switched = _options_of(launch.words)
    performance = launch.program.endswith(_BY_PERFORMANCE)
    found = [one for name, value in options.items() for one in _overrides_of(name, value, performance)]
    for name, said in _RECOMPUTED.items():
        stated = options.get(name)
        if stated is not None and stated.text not in ("None", ""):
            found += [word(f"{key}={text}", stated.place) for key, text in said]
    tensor = next((options[name] for name in ("-tp", "--tensor_model_parallel_size") if name in options), None)
    if tensor is not None and performance and tensor.text.isdecimal():
        cut = "true" if int(tensor.text) > 1 else "false"
        found.append(word(f"model.sequence_parallel={cut}", tensor.place))
    return [*found, *launch.words, *switched]


def _options_of(words: Sequence[Word]) -> tuple[dict[str, Word], list[Word]]:
    """Options that stand for overrides with their values, and the overrides that switches stand for."""
    options, switched = dict[str, Word](), list[Word]()
    name = ""
    for at, one in enumerate(words):
        head, equals, attached = one.text.partition("=")
        if name:
            options[name], name = one, ""
        elif head in _KEYS or head in ("-c", "--compute_dtype"):
            name = "" if equals else head
            if equals:
                options[head] = value_behind(one, len(head) + 1)
        elif head in _SWITCHES and not _off(attached if equals else _following(words, at)):
            switched += [word(f"{key}=true", one.place) for key in _SWITCHES[head]]
    return options, switched


def _overrides_of(name: str, value: Word, performance: bool) -> Iterator[Word]:
    """The overrides that an option stands for.

    Args:
        name: the option.
        value: its value.
        performance: whether the program is one of scripts/performance.
    """
    if name == _BACKEND and value.text.lower() == "none":
        return
    if name == _BACKEND:
        yield word("model.moe_token_dispatcher_type=flex", value.place)
    if name in _KEYS:
        yield keyed(_KEYS[name], value)
    elif value.text not in _FORMATS:
        yield keyed("mixed_precision", value)
    else:
        yield word(f"mixed_precision={_FORMATS[value.text]}", value.place)
        if performance:  # it computes in 8 bits in all layers: scripts/performance/utils/precision.py
            yield word("mixed_precision.first_last_layers_bf16=false", value.place)


def value_behind(one: Word, left: int) -> Word:
    """A word without its first letters."""
    return word(one.text[left:], one.place) if one.unknown is None else one


def devices_of(launch: Launch) -> int | None:
    """Devices that a launcher asks for."""
    texts = [one.text for one in launch.words]
    for at, text in enumerate(texts[:-1]):
        if text in ("-ng", "--num_gpus") and texts[at + 1].isdecimal():
            return int(texts[at + 1])
    return None


def model_named(launch: Launch) -> dict[str, Any]:
    """The model of a recipe by its name, where the library has one of that name."""
    texts = [one.text for one in launch.words]
    for at, text in enumerate(texts[:-1]):
        if text in ("-mr", "--model_recipe_name", "--recipe", "--model"):
            return of_recipe(texts[at + 1])
    said = dict(pairwise(texts))
    name, size = (next((said[one] for one in names if one in said), "") for names in _OF_2025)
    return of_recipe(f"{name}_{size}_config") if name and size else {}


_OF_2025 = (("-m", "--model_name"), ("-s", "--model_size"))
"""A model's name and its size, in the options of scripts/performance of releases up to 0.2."""


_OF_A_RECIPE = re.compile(r"_(?:pretrain|sft|peft|finetune|perf)?(?:_\d{1,6}gpu_\w{1,40}?)?_?config$")
"""The end of a recipe's name behind that of its model."""


def of_recipe(name: str) -> dict[str, Any]:
    """The model of a recipe by its name, where the library has one of that name.

    Args:
        name: the name of the function, or of the model in it.
    """
    stem = _OF_A_RECIPE.sub("", name)
    known = models.find_name(re.sub(r"^(llama|qwen|glm)(\d)(\d)_", r"\1\2.\3_", stem))
    return {"name": known} if known else {}


_USUAL = {"mixed_precision": "bf16_mixed"}
_USUAL_PRETRAINING = {
    "ddp.use_distributed_optimizer": "true",
    "optimizer.use_distributed_optimizer": "true",
    "ddp.overlap_grad_reduce": "true",
    "ddp.overlap_param_gather": "true",
}
"""What the functions that recipes start from set. Source: megatron/bridge/recipes/common.py, commit 067f987d."""
_USUAL_EXPERTS = {"model.expert_tensor_parallel_size": "1", "model.moe_token_dispatcher_type": "alltoall"}
"""What recipes of models with experts set. Source: megatron/bridge/recipes of megatron-bridge 0.3.1."""


def recipe_defaults(names: str, given: Iterable[str]) -> list[Word]:
    """Overrides that say what nearly every recipe sets, where nothing else does.

    Args:
        names: words that say what kind of recipe it is.
        given: keys that are said.
    """
    pretrained = not re.search(r"(?:^|[\s_])(?:sft|peft|lora|dora|finetune)(?:[\s_.]|$)", names)
    narrow = re.search(r"fp8|fp4|low_precision", names)  # which of their formats it takes is the recipe's own
    said = frozenset(given)
    known = ({} if narrow else _USUAL) | (_USUAL_PRETRAINING if pretrained else {})
    known |= _USUAL_EXPERTS if "model.expert_model_parallel_size" in said else {}
    fsdp = "ddp.use_megatron_fsdp" in said
    return [
        word(f"{key}={value}") for key, value in known.items() if key not in said and not (fsdp and "overlap" in key)
    ]


_TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")


def lora_asked(launch: Launch, texts: Mapping[str, str]) -> tuple[dict[str, Any] | None, list[Problem]]:
    """Adapters of a recipe, None where all of the model is trained; and what of them is asked for.

    Args:
        launch: the launch of the recipe.
        texts: overrides by key.
    """
    words = [one.text for one in launch.words]
    named = [words[at + 1] for at, text in enumerate(words[:-1]) if text in ("--recipe", "--peft_scheme", "--mode")]
    if not any(re.search(r"(?:^|_)(?:peft|lora|dora)(?:_|$)", one) for one in named) and not any(
        key.startswith("peft.") for key in texts
    ):
        return None, []
    rank = parsed_word(texts.get("peft.dim", ""))
    targets = parsed_word(texts.get("peft.target_modules", ""))
    if isinstance(targets, str):
        targets = [one.strip(" '\"") for one in targets.strip("[]").split(",") if one.strip()]
    found: dict[str, Any] = {
        "targets": targets or list(_TARGETS),
        "dropout": parsed_word(texts.get("peft.dropout", "0.0")),
        "dora": any("dora" in one for one in named),
    }
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        why = "the recipe trains adapters, and sets their rank, which is not read"
        asked = Problem(
            what="peft.dim is not given", why=why, fix="write it as an override, KEY=VALUE", field="peft.dim"
        )
        return found, [asked]
    return {"r": rank, **{name: value for name, value in found.items() if value}}, []


def lora_of_keys(texts: Mapping[str, str]) -> dict[str, Any]:
    """Adapters as keys of a configuration say them.

    Args:
        texts: the texts by key.
    """
    targets = texts.get("peft.target_modules", "").strip("[]")
    found = {
        "r": parsed_word(texts.get("peft.dim", "32")),
        "targets": [one.strip(" '\"") for one in targets.split(",") if one.strip()] or list(_TARGETS),
        "dropout": parsed_word(texts.get("peft.dropout", "0.0")),
        "dora": texts.get("peft.dora") == "True",
    }
    return {name: value for name, value in found.items() if value}


def started(launches: Iterable[Launch], keys: Iterable[str]) -> list[Launch]:
    """The launches that start a recipe: with overrides, or by a launcher's own options."""
    known = frozenset(keys)
    return [
        one
        for one in launches
        if any(text.text.lstrip("+").partition("=")[0] in known for text in one.words)
        or (one.program.endswith(PROGRAMS) and any(option_keys(text.text) for text in one.words))
    ]
