"""Megatron-LM's options and Megatron-Bridge's keys, as one table read in both directions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher

from meshwright.errors import Problem, nearest
from meshwright.formats.shell import Word, word
from meshwright.targets.overrides import keyed, parted

_M, _DDP, _OPT = "model.", "ddp.", "optimizer."
KEYS: dict[str, tuple[str, ...]] = {
    "--tensor-model-parallel-size": (f"{_M}tensor_model_parallel_size",),
    "--sequence-parallel": (f"{_M}sequence_parallel",),
    "--tp-comm-overlap": ("comm_overlap.tp_comm_overlap",),
    "--context-parallel-size": (f"{_M}context_parallel_size",),
    "--cp-comm-type": (f"{_M}cp_comm_type",),
    "--hierarchical-context-parallel-sizes": (f"{_M}hierarchical_context_parallel_sizes",),
    "--pipeline-model-parallel-size": (f"{_M}pipeline_model_parallel_size",),
    "--pipeline-model-parallel-layout": (f"{_M}pipeline_model_parallel_layout",),
    "--num-virtual-stages-per-pipeline-rank": (f"{_M}virtual_pipeline_model_parallel_size",),
    "--microbatch-group-size-per-virtual-pipeline-stage": (f"{_M}microbatch_group_size_per_vp_stage",),
    "--expert-model-parallel-size": (f"{_M}expert_model_parallel_size",),
    "--expert-tensor-parallel-size": (f"{_M}expert_tensor_parallel_size",),
    "--moe-token-dispatcher-type": (f"{_M}moe_token_dispatcher_type",),
    "--moe-flex-dispatcher-backend": (f"{_M}moe_flex_dispatcher_backend",),
    "--moe-expert-capacity-factor": (f"{_M}moe_expert_capacity_factor",),
    "--overlap-moe-expert-parallel-comm": ("comm_overlap.overlap_moe_expert_parallel_comm",),
    "--delay-wgrad-compute": ("comm_overlap.delay_wgrad_compute",),
    "--moe-shared-expert-overlap": (f"{_M}moe_shared_expert_overlap",),
    "--recompute-granularity": (f"{_M}recompute_granularity",),
    "--recompute-method": (f"{_M}recompute_method",),
    "--recompute-num-layers": (f"{_M}recompute_num_layers",),
    "--recompute-modules": (f"{_M}recompute_modules",),
    "--fine-grained-activation-offloading": (f"{_M}fine_grained_activation_offloading",),
    "--offload-modules": (f"{_M}offload_modules",),
    "--mtp-num-layers": (f"{_M}mtp_num_layers",),
    "--attention-backend": (f"{_M}attention_backend",),
    "--seq-length": (f"{_M}seq_length", "dataset.sequence_length"),
    "--micro-batch-size": ("train.micro_batch_size",),
    "--global-batch-size": ("train.global_batch_size",),
    "--use-distributed-optimizer": (f"{_DDP}use_distributed_optimizer", f"{_OPT}use_distributed_optimizer"),
    "--use-megatron-fsdp": (f"{_DDP}use_megatron_fsdp", "dist.use_megatron_fsdp"),
    "--data-parallel-sharding-strategy": (f"{_DDP}data_parallel_sharding_strategy",),
    "--outer-dp-sharding-strategy": (f"{_DDP}outer_dp_sharding_strategy",),
    "--num-distributed-optimizer-instances": (f"{_DDP}num_distributed_optimizer_instances",),
    "--overlap-grad-reduce": (f"{_DDP}overlap_grad_reduce", "comm_overlap.overlap_grad_reduce"),
    "--overlap-param-gather": (f"{_DDP}overlap_param_gather", "comm_overlap.overlap_param_gather"),
    "--ckpt-format": ("checkpoint.ckpt_format",),
    "--optimizer": (f"{_OPT}optimizer",),
    "--optimizer-cpu-offload": (f"{_OPT}optimizer_cpu_offload",),
    "--optimizer-offload-fraction": (f"{_OPT}optimizer_offload_fraction",),
    "--use-precision-aware-optimizer": (f"{_OPT}use_precision_aware_optimizer",),
}
"""Option to the keys that say the same.

Source: megatron/bridge/training/config.py and comm_overlap.py of megatron-bridge 0.3.1; model, ddp and optimizer are
classes of megatron-core 0.16.1.
"""
READ = {
    "optimizer.exp_avg_dtype": "--exp-avg-dtype",
    "optimizer.exp_avg_sq_dtype": "--exp-avg-sq-dtype",
    "optimizer.main_grads_dtype": "--main-grads-dtype",
    "model.account_for_embedding_in_pipeline_split": "--account-for-embedding-in-pipeline-split",
    "model.account_for_loss_in_pipeline_split": "--account-for-loss-in-pipeline-split",
    "model.num_layers_in_first_pipeline_stage": "--decoder-first-pipeline-num-layers",
    "model.num_layers_in_last_pipeline_stage": "--decoder-last-pipeline-num-layers",
}
"""Keys that are read and not written, with the option that says the same."""
_SWITCHES = (
    "--sequence-parallel",
    "--tp-comm-overlap",
    "--use-distributed-optimizer",
    "--use-megatron-fsdp",
    "--overlap-grad-reduce",
    "--overlap-param-gather",
)
"""Written as false where they are not given: the common recipe turns some of them on."""
_ABSENT = ("--pipeline-model-parallel-layout", "--num-virtual-stages-per-pipeline-rank", "--recompute-granularity")
"""Written as null where they are not given."""
_BESIDE_SHARED = "--moe-shared-expert-overlap"
"""Written as false for mixtures of experts: some of its models turn it on, which other overlaps do not go with."""
_ONE = ("--context-parallel-size", "--expert-model-parallel-size")
"""Written as 1 where they are not given: a recipe may hold another degree."""
_LISTS = ("--hierarchical-context-parallel-sizes", "--recompute-modules", "--offload-modules")
_ALWAYS = ("--max-position-embeddings",)
"""Options that are left out, because the model's own config states them."""
_FORMATS: dict[str, frozenset[tuple[str, str]]] = {
    "bf16_mixed": frozenset({("--bf16", "")}),
    "fp16_mixed": frozenset({("--fp16", "")}),
    "bf16_with_fp8_delayed_scaling_mixed": frozenset(
        {("--bf16", ""), ("--fp8-format", "hybrid"), ("--fp8-recipe", "delayed")}
    ),
    "bf16_with_fp8_current_scaling_mixed": frozenset(
        {("--bf16", ""), ("--fp8-format", "hybrid"), ("--fp8-recipe", "tensorwise")}
    ),
    "bf16_with_mxfp8_mixed": frozenset({("--bf16", ""), ("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8")}),
    "bf16_with_fp8_subchannel_scaling_mixed": frozenset(
        {("--bf16", ""), ("--fp8-format", "e4m3"), ("--fp8-recipe", "blockwise")}
    ),
    "bf16_with_nvfp4_mixed": frozenset({("--bf16", ""), ("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")}),
}
"""Recipes of number formats by the options that say the same."""
_MADE: dict[str, dict[str, str]] = {
    "bf16_with_fp8_delayed_scaling_mixed": {"fp8_param_gather": "true"},
    "bf16_with_fp8_current_scaling_mixed": {
        "fp8_param_gather": "true",
        "first_last_layers_bf16": "true",
        "num_layers_at_start_in_bf16": "1",
        "num_layers_at_end_in_bf16": "1",
    },
    "bf16_with_mxfp8_mixed": {"fp8_param_gather": "true"},
}
"""What recipes of number formats set besides; they stand over fields of the same names in ddp and model.

Source: megatron/bridge/training/mixed_precision.py, commit 067f987d (2026-08).
"""
_OF_MADE = "mixed_precision."
_BLOCKS = "bf16_with_mxfp8_mixed"
"""Recipe whose weights are gathered into the buffer of gradients, where they are gathered in 8 bits."""
_MADE_FLAGS = {
    "fp8_param_gather": "--fp8-param-gather",
    "fp8_param": "--fp8-param-gather",
    "first_last_layers_bf16": "--first-last-layers-bf16",
    "num_layers_at_start_in_bf16": "--num-layers-at-start-in-bf16",
    "num_layers_at_end_in_bf16": "--num-layers-at-end-in-bf16",
}
_OF_FORMATS = ("--bf16", "--fp16", "--fp8-format", "--fp8-recipe", "--fp4-format", "--fp4-recipe")
_KEPT_WEIGHTS = ("--megatron-fsdp-main-params-dtype", "fp32")
_KEPT_KEY = f"{_DDP}preserve_fp32_weights"
_NARROW = ("--grad-reduce-in-bf16", "")
_NARROW_KEY = f"{_DDP}grad_reduce_in_fp32"
_KEPT_LOW = ("--fp8-param-gather", "")

KEY_OF = {
    **{flag: keys[0] for flag, keys in KEYS.items()},
    **dict.fromkeys(_OF_FORMATS, "mixed_precision"),
    _KEPT_WEIGHTS[0]: _KEPT_KEY,
    _NARROW[0]: f"{_OF_MADE}grad_reduce_in_fp32",
    _KEPT_LOW[0]: f"{_OF_MADE}fp8_param_gather",
}
"""The key that says what an option of Megatron-LM says."""
_SAID_APART = (_KEPT_WEIGHTS, _NARROW, _KEPT_LOW)
Flags = Sequence[tuple[str, str]]


def _recipe(arguments: Flags) -> str | None:
    """The number formats by name; None where there is none of them."""
    said = frozenset(flag for flag in arguments if flag[0] in _OF_FORMATS)
    return next((name for name, flags in _FORMATS.items() if flags == said), None)


def unsaid(arguments: Flags) -> Iterator[Problem]:
    """Options of a plan that no key says."""
    for flag, value in arguments:
        known = flag in KEYS or flag in _ALWAYS or flag in _OF_FORMATS or (flag, value) in _SAID_APART
        if not known:
            what = f"plan: {flag} {value}".rstrip()
            yield Problem(what=what, why="no key of Megatron-Bridge says this", fix="use --to megatron", field=flag)
    if _recipe(arguments) is None:
        what = f"precision: {' '.join(' '.join(flag) for flag in arguments if flag[0] in _OF_FORMATS) or 'fp32'}"
        why = f"number formats are {', '.join(_FORMATS)}"
        yield Problem(what=what, why=why, fix="use bf16", field="workload.precision")


def overrides(arguments: Flags) -> dict[str, str]:
    """Keys and values of a plan's options."""
    given = dict(arguments)
    found: dict[str, str] = {}
    for flag, keys in KEYS.items():
        if flag in given:
            value = given[flag]
            text = f"[{','.join(value.split())}]" if flag in _LISTS else _text(value) if value else "true"
        elif flag in _SWITCHES:
            text = "false"
        elif flag in _ONE:
            text = "1"
        elif flag in _ABSENT:
            text = "null"
        elif flag == _BESIDE_SHARED and "--moe-token-dispatcher-type" in given:
            text = "false"
        else:
            continue
        found |= dict.fromkeys(keys, text)
    found |= _chunks(given) | _formats(arguments)
    if _KEPT_WEIGHTS in arguments:
        found[_KEPT_KEY] = "true"
    elif "--use-megatron-fsdp" in given:
        found[_KEPT_KEY] = "false"
    return found


def _chunks(given: Mapping[str, str]) -> dict[str, str]:
    """Chunks a pipeline rank, said beside a layout: overlaps are checked before a layout is counted."""
    layout = given.get("--pipeline-model-parallel-layout")
    chunks = (layout.count("|") + 1) // int(given["--pipeline-model-parallel-size"]) if layout else 1
    return {KEYS["--num-virtual-stages-per-pipeline-rank"][0]: str(chunks)} if chunks > 1 else {}


def _formats(arguments: Flags) -> dict[str, str]:
    """The recipe of number formats, and what differs from it.

    What a recipe sets stands over the same fields of `ddp` and `model`, so that only its own fields say otherwise.
    """
    name = str(_recipe(arguments))
    found = {"mixed_precision": name}
    kept, made = _KEPT_LOW in arguments, "fp8_param_gather" in _MADE.get(name, {})
    if kept != made:
        found[KEY_OF[_KEPT_LOW[0]]] = "true" if kept else "false"
        if name == _BLOCKS:
            found[f"{_OF_MADE}reuse_grad_buf_for_mxfp8_param_ag"] = "false"
    if _NARROW in arguments:
        found[KEY_OF[_NARROW[0]]] = "false"
    return found


def _text(value: str) -> str:
    """A value as the parser of overrides takes it: layouts hold characters of its own."""
    return f"'{value}'" if set(value) & set("|*,()") else value


def override_options() -> dict[str, str]:
    """Keys of a plan with the option that says the same; those of number formats with none."""
    found = {key: flag for flag, keys in KEYS.items() for key in keys} | READ
    return found | dict.fromkeys(("mixed_precision", _KEPT_KEY, _NARROW_KEY), "")


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
    fields = {key: word(value) for key, value in _MADE.get(name, {}).items()}
    fields |= {key.removeprefix(_OF_MADE): one for key, one in given.items() if key.startswith(_OF_MADE)}
    narrow = fields.get("grad_reduce_in_fp32")
    left = [one for one in words if not parted(one)[0].startswith(_OF_MADE) and parted(one)[0] != _NARROW_KEY]
    if narrow is not None:
        left.append(keyed(_NARROW_KEY, word(narrow.text.lower(), narrow.place)))
    first = fields.get("first_last_layers_bf16")
    if first is None or first.text.lower() != "true":
        fields = {key: one for key, one in fields.items() if "bf16" not in key}
    return left + [keyed(f"{_OF_MADE}{key}", one) for key, one in fields.items() if key in _MADE_FLAGS]


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
            meant = next(iter(nearest(text, _FORMATS, count=1)), _USUAL_FORMATS)
            said = _FORMATS[text if text in _FORMATS else meant]
            found += [word(part, value.place) for parts in sorted(said) for part in parts if part]
            if text not in _FORMATS:
                why = f"known are {', '.join(_FORMATS)}"
                problems.append(Problem(what=f"mixed_precision is {text[:60]}", why=why, fix=f"use {meant}", field=key))
        elif key.startswith(_OF_MADE):
            found += _words(_MADE_FLAGS[key.removeprefix(_OF_MADE)], word(text.lower(), value.place))
        elif key == _KEPT_KEY:
            found += [word(part, value.place) for part in _KEPT_WEIGHTS if text == "true"]
        elif key == _NARROW_KEY:
            found += [word(_NARROW[0], value.place)] if text == "false" else []
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
    parts = text.strip("[]").split(",") if flag in _LISTS else [text]
    return [name, *(word(part, value.place) for part in parts)]
