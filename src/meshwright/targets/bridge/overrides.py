"""Megatron-LM's options and Megatron-Bridge's keys, as one table read in both directions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from meshwright.errors import Problem

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
LISTS = ("--hierarchical-context-parallel-sizes", "--recompute-modules", "--offload-modules")
_ALWAYS = ("--max-position-embeddings",)
"""Options that are left out, because the model's own config states them."""
FORMATS: dict[str, frozenset[tuple[str, str]]] = {
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
MADE: dict[str, dict[str, str]] = {
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
OF_MADE = "mixed_precision."
_BLOCKS = "bf16_with_mxfp8_mixed"
"""Recipe whose weights are gathered into the buffer of gradients, where they are gathered in 8 bits."""
MADE_FLAGS = {
    "fp8_param_gather": "--fp8-param-gather",
    "fp8_param": "--fp8-param-gather",
    "first_last_layers_bf16": "--first-last-layers-bf16",
    "num_layers_at_start_in_bf16": "--num-layers-at-start-in-bf16",
    "num_layers_at_end_in_bf16": "--num-layers-at-end-in-bf16",
}
_OF_FORMATS = ("--bf16", "--fp16", "--fp8-format", "--fp8-recipe", "--fp4-format", "--fp4-recipe")
KEPT_WEIGHTS = ("--megatron-fsdp-main-params-dtype", "fp32")
KEPT_KEY = f"{_DDP}preserve_fp32_weights"
NARROW = ("--grad-reduce-in-bf16", "")
NARROW_KEY = f"{_DDP}grad_reduce_in_fp32"
_KEPT_LOW = ("--fp8-param-gather", "")

KEY_OF = {
    **{flag: keys[0] for flag, keys in KEYS.items()},
    **dict.fromkeys(_OF_FORMATS, "mixed_precision"),
    KEPT_WEIGHTS[0]: KEPT_KEY,
    NARROW[0]: f"{OF_MADE}grad_reduce_in_fp32",
    _KEPT_LOW[0]: f"{OF_MADE}fp8_param_gather",
}
"""The key that says what an option of Megatron-LM says."""
_SAID_APART = (KEPT_WEIGHTS, NARROW, _KEPT_LOW)
Flags = Sequence[tuple[str, str]]


def _recipe(arguments: Flags) -> str | None:
    """The number formats by name; None where there is none of them."""
    said = frozenset(flag for flag in arguments if flag[0] in _OF_FORMATS)
    return next((name for name, flags in FORMATS.items() if flags == said), None)


def unsaid(arguments: Flags) -> Iterator[Problem]:
    """Options of a plan that no key says."""
    for flag, value in arguments:
        known = flag in KEYS or flag in _ALWAYS or flag in _OF_FORMATS or (flag, value) in _SAID_APART
        if not known:
            what = f"plan: {flag} {value}".rstrip()
            yield Problem(what=what, why="no key of Megatron-Bridge says this", fix="use --to megatron", field=flag)
    if _recipe(arguments) is None:
        what = f"precision: {' '.join(' '.join(flag) for flag in arguments if flag[0] in _OF_FORMATS) or 'fp32'}"
        why = f"number formats are {', '.join(FORMATS)}"
        yield Problem(what=what, why=why, fix="use bf16", field="workload.precision")


def overrides(arguments: Flags) -> dict[str, str]:
    """Keys and values of a plan's options."""
    given = dict(arguments)
    found: dict[str, str] = {}
    for flag, keys in KEYS.items():
        if flag in given:
            value = given[flag]
            text = f"[{','.join(value.split())}]" if flag in LISTS else _text(value) if value else "true"
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
    if KEPT_WEIGHTS in arguments:
        found[KEPT_KEY] = "true"
    elif "--use-megatron-fsdp" in given:
        found[KEPT_KEY] = "false"
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
    kept, made = _KEPT_LOW in arguments, "fp8_param_gather" in MADE.get(name, {})
    if kept != made:
        found[KEY_OF[_KEPT_LOW[0]]] = "true" if kept else "false"
        if name == _BLOCKS:
            found[f"{OF_MADE}reuse_grad_buf_for_mxfp8_param_ag"] = "false"
    if NARROW in arguments:
        found[KEY_OF[NARROW[0]]] = "false"
    return found


def _text(value: str) -> str:
    """A value as the parser of overrides takes it: layouts hold characters of its own."""
    return f"'{value}'" if set(value) & set("|*,()") else value


def override_options() -> dict[str, str]:
    """Keys of a plan with the option that says the same; those of number formats with none."""
    found = {key: flag for flag, keys in KEYS.items() for key in keys} | READ
    return found | dict.fromkeys(("mixed_precision", KEPT_KEY, NARROW_KEY), "")
