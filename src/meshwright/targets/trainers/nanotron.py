"""nanotron: the YAML of a training, which holds the whole model, its batch and its degrees.

Keys are those of src/nanotron/config of nanotron (2025), https://github.com/huggingface/nanotron; what it stops on, or
reads past, is that of commit 2411b022 (2026-04).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from meshwright.formats.launch_file import LaunchFile
from meshwright.specs.precision import PRECISIONS, Precision
from meshwright.specs.row import PlanRow
from meshwright.targets import fsdp, overrides
from meshwright.targets.contract import Files, ReadTarget, file_of, marked_lines
from meshwright.targets.keys import KeyReader
from meshwright.targets.trainers import shared

TITLE = "nanotron"
_recognised = marked_lines(
    r"^parallelism:",
    r"^tokens:",
    r"^[ \t]+batch_accumulation_per_replica:",
)
_ENGINES = {"1f1b": "1f1b", "afab": "gpipe"}
_KINDS = {"is_llama_config": "llama", "is_qwen2_config": "qwen2", "is_starcoder2_config": "starcoder2"}


def read(files: Files, devices: int | None = None) -> LaunchFile:
    """The YAML as a plan.

    Args:
        files: the YAML.
        devices: the number of devices of the job, which must be those of the file's degrees.

    Raises:
        InputError: the text is no YAML, or the model's sizes contradict each other.
    """
    reader = shared.yaml_reader(file_of(files, "nanotron.yaml", _recognised), files, TITLE)
    config = _model(reader)
    row = _row(reader)
    _refuse_at_start(reader, row, config)
    if devices not in (None, row.devices):
        why = f"the degrees of the file make {row.devices} devices, and the cluster has {devices}"
        fix = f"say --gpus for {row.devices}, or --set parallelism.dp=N"
        reader.refuse("parallelism.dp", row.dp, why, fix)
    for name in (name for name in reader.keys if name not in _SECTIONS):
        why = "nanotron has no such table: a fork's may change the model or its steps"
        reader.refuse(name, "given", why, "leave it out to check the rest")
    notes: tuple[str, ...] = ()
    if reader.get("model.model_config.is_llama_config") and reader.get("model.init_method.std") is not None:
        why = "commit 2411b022 (2026-04) stops as it draws the weights of a Llama"
        notes = (f"{why}: with is_qwen2_config and without attention_bias it is the same model, and starts",)
    found = shared.launched(
        reader,
        row,
        notes=notes,
        started=row.devices,
        precision=_precision(reader),
        config=config,
        optimizer=_optimizer(reader),
        seq_len=reader.degree("tokens.sequence_length"),
    )
    dealt = None if config is None or row.pp == 1 else partial(_dealt, config=config, ranks=row.pp)
    return replace(found, dealt=dealt)


def _refuse_at_start(reader: KeyReader, row: PlanRow, config: Mapping[str, Any] | None) -> None:
    """What its trainer stops on, or runs as another plan."""
    model = "model.model_config"
    if row.pp > 1 and row.schedule == "1f1b" and row.micro_batches < row.pp - 1:
        why = f"1f1b takes at least {row.pp - 1} micro-batches on {row.pp} stages"
        path = "tokens.batch_accumulation_per_replica"
        reader.refuse(path, row.micro_batches, why, f"use {row.pp - 1}")
    if row.cp:
        _refuse_context(reader, row)
    if config is None:
        return
    heads = int(config.get("num_attention_heads") or 0)
    groups = int(config.get("num_key_value_heads") or heads)
    if heads % row.tp or groups < row.tp:
        why = f"{heads} heads in {groups} groups are cut, and a rank has at least a whole group"
        reader.refuse("parallelism.tp", row.tp, why, "use fewer")
    if row.recompute == "full" and reader.get(f"{model}.is_starcoder2_config"):
        why = "layers of its Starcoder2 are not recomputed, whatever the key says"
        reader.refuse("parallelism.recompute_layer", True, why, "use false")


_SECTIONS = (
    *("general", "parallelism", "model", "tokenizer", "checkpoints", "logging", "metrics_logging", "tokens"),
    *("optimizer", "data_stages", "profiler", "lighteval", "s3_upload"),
    # Of earlier releases, and of experiments with data that come with it.
    *("data", "learning_rate_scheduler", "profile", "experiment_logger", "kill_switch_path", "brrr_data", "doremi"),
)
"""Tables of its configuration."""
_CONTEXTS = {"ring": "p2p", "ring_flash_triton": "p2p", "llama3_ring_attention": "ag"}
"""Kinds of context ranks by the attention of its Qwen2."""
_ATTENTION = "model.model_config._attn_implementation"


def _refuse_context(reader: KeyReader, row: PlanRow) -> None:
    """Context ranks that it does not start, or leaves without each other's keys and values."""
    key = "parallelism.context_parallel_size"
    if reader.get("checkpoints.resume_checkpoint_path") is None:
        why = "with context ranks its trainer goes on from a checkpoint of nanotron, and starts none anew"
        reader.refuse(key, row.cp_degree, why, "name checkpoints.resume_checkpoint_path, or use 1")
    if not reader.get("model.model_config.is_qwen2_config"):
        why = "attention of its Llama and Starcoder2 does not leave a rank's own part of a sequence"
        reader.refuse(key, row.cp_degree, why, "use 1")
    elif str(reader.get(_ATTENTION)) not in _CONTEXTS:
        why = f"context ranks exchange keys and values in {', '.join(_CONTEXTS)} alone"
        reader.refuse(_ATTENTION, reader.get(_ATTENTION), why, "use ring_flash_triton, or context_parallel_size 1")
    if row.sharding == "z1":
        why = "states are sharded over dp ranks alone, which rows do not say beside context ranks"
        reader.refuse("optimizer.zero_stage", 1, why, "use 0")


def _dealt(layers: int, *, config: Mapping[str, Any], ranks: int) -> tuple[int, ...]:
    """Layers of each rank: a rank takes blocks until what they multiply, head included, is more than its share.

    Source: build_model of src/nanotron/models/base.py, get_block_compute_costs of its models (2025).
    """
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    inner = int(config.get("intermediate_size") or 4 * hidden)
    products = 2 if config["model_type"] == "starcoder2" else 3
    layer = 4 * heads * (hidden // heads) * hidden + products * inner * hidden
    whole = layers * layer + int(config["vocab_size"]) * hidden
    counts, rank = [0] * ranks, 0
    for number in range(1, layers + 1):
        counts[rank] += 1
        if number * layer * ranks > whole * (rank + 1):
            rank += 1
    return tuple(counts)


def _row(reader: KeyReader) -> PlanRow:
    tp, pp, dp = (reader.degree(f"parallelism.{name}") for name in ("tp", "pp", "dp"))
    cp, ep = reader.degree("parallelism.context_parallel_size"), reader.degree("parallelism.expert_parallel_size")
    if ep > 1:
        why = "its groups of expert ranks are separate from the data ranks, which rows do not say"
        reader.refuse("parallelism.expert_parallel_size", ep, why, "use 1")
    engine = reader.word("parallelism.pp_engine", "afab")
    if engine not in _ENGINES:
        reader.refuse("parallelism.pp_engine", engine, f"must be {' or '.join(_ENGINES)}", "use 1f1b")
    zero = reader.number("optimizer.zero_stage")
    if zero > 1:
        reader.refuse("optimizer.zero_stage", zero, "must be 0 or 1", "use 1")
    mbs, steps = reader.degree("tokens.micro_batch_size"), reader.degree("tokens.batch_accumulation_per_replica")
    scattered = reader.word("parallelism.tp_mode", "all_reduce") == "reduce_scatter"
    beside = reader.switch("parallelism.tp_linear_async_communication")
    if beside and tp > 1 and not scattered:
        why = "sums over tensor ranks of all_reduce are not hidden, and its layers stop where they are asked to be"
        reader.refuse("parallelism.tp_linear_async_communication", True, why, "use false, or tp_mode REDUCE_SCATTER")
    if scattered and tp > 1 and not reader.switch("parallelism.tp_recompute_allgather", default=True):
        why = "gathered inputs are kept for the backward pass, which rows do not say"
        reader.refuse("parallelism.tp_recompute_allgather", False, why, "use true")
    return PlanRow(
        tp=tp,
        sp=tp == 1 or scattered,
        tp_overlap="bulk" if tp == 1 or beside else "none",
        cp=((_CONTEXTS.get(str(reader.get(_ATTENTION)), "p2p"), cp),) if cp > 1 else (),
        pp=pp,
        dp=dp,
        sharding=f"z{min(zero, 1)}",
        mbs=mbs,
        gbs=mbs * steps * dp,
        schedule=_ENGINES.get(engine, "1f1b") if pp > 1 else "1f1b",
        recompute="full" if reader.switch("parallelism.recompute_layer") else "none",
    )


def _precision(reader: KeyReader) -> Precision:
    """Weights in 16 bits beside fp32 copies where gradients are summed in fp32, else all of it in one format."""
    dtype = reader.word("model.dtype", "bfloat16").removeprefix("torch.")
    if dtype in ("float32", "fp32"):
        return PRECISIONS["fp32"]
    if dtype not in ("bfloat16", "bf16"):
        reader.refuse("model.dtype", dtype, "bfloat16 and float32 can be planned", "use bfloat16")
    return PRECISIONS["bf16"] if reader.switch("optimizer.accumulate_grad_in_fp32") else fsdp.ALL_IN_16_BITS


def _optimizer(reader: KeyReader) -> str:
    name = reader.word("optimizer.optimizer_factory.name", "adamw")
    if name not in ("adamw", "sgd"):
        reader.refuse("optimizer.optimizer_factory.name", name, "adamW and sgd can be planned", "use adamW")
    return name if name in ("adamw", "sgd") else "adamw"


def _model(reader: KeyReader) -> Mapping[str, Any] | None:
    """The model's configuration in the words of the transformers library; None of other kinds."""
    said = reader.get("model.model_config")
    said = said if isinstance(said, Mapping) else {}
    kind = next((ours for name, ours in _KINDS.items() if said.get(name)), "")
    if not kind or said.get("moe_config"):
        what = "moe_config" if kind else next((name for name in said if name.startswith("is_")), None)
        path = "model.model_config" if what else f"model.model_config.{next(iter(_KINDS))}"
        why = "decoders of Llama, Qwen2 and Starcoder2 without experts are read"
        reader.refuse(path, what, why, "name the model before the file: check MODEL FILE")
        return None
    names = (
        *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
        *("vocab_size", "max_position_embeddings", "tie_word_embeddings", "hidden_act", "head_dim", "attention_bias"),
    )
    config = {name: said[name] for name in names if said.get(name) is not None}
    _of_defaults(config, kind, said)
    if kind == "qwen2" and not said.get("attention_bias", False):
        config["model_type"] = "llama"
    else:
        config["model_type"] = kind
        config.pop("attention_bias", None) if kind == "qwen2" else None
    if kind == "starcoder2" and said.get("sliding_window_size"):
        config["sliding_window"] = said["sliding_window_size"]
        if said.get("global_attn_layers"):
            why = "some layers see all tokens beside others that see a window, which is not read"
            reader.refuse("model.model_config.global_attn_layers", said["global_attn_layers"], why, "leave it out")
    if kind == "qwen2" and said.get("sliding_window_size"):
        why = "which layers have windows follows from no_rope_layer, which is not read"
        reader.refuse("model.model_config.sliding_window_size", said["sliding_window_size"], why, "leave it out")
    padded = reader.degree("model.make_vocab_size_divisible_by") * reader.degree("parallelism.tp")
    if isinstance(config.get("vocab_size"), int):
        config["vocab_size"] = -(-config["vocab_size"] // padded) * padded
    return config


def _of_defaults(config: dict[str, Any], kind: str, said: Mapping[str, Any]) -> None:
    """Sizes that its classes fill in where the file leaves them out.

    Source: Starcoder2Config and LlamaConfig of src/nanotron/config/models_config.py (2025).
    """
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if kind == "starcoder2":
        # One head of keys and values, unless groups of them are stated.
        config.setdefault("num_key_value_heads", said.get("num_kv_heads") if said.get("grouped_query") else 1)
        if isinstance(hidden, int):
            config.setdefault("intermediate_size", 4 * hidden)
    elif kind == "llama":
        config.setdefault("intermediate_size", 11008)
        if heads is not None:
            config.setdefault("num_key_value_heads", heads)


def _says(row: PlanRow, text: str) -> dict[str, object]:
    engines = {ours: theirs for theirs, ours in _ENGINES.items()}
    piped = {"parallelism.pp_engine": engines.get(row.schedule, "1f1b")} if row.pp > 1 else {}
    cut = {"parallelism.tp_mode": "REDUCE_SCATTER" if row.sp else "ALL_REDUCE"} if row.tp > 1 else {}
    hidden = row.sp and row.tp_overlap != "none"
    beside = {"parallelism.tp_linear_async_communication": hidden} if row.tp > 1 else {}
    return {
        "parallelism.dp": row.dp,
        "parallelism.pp": row.pp,
        "parallelism.tp": row.tp,
        "parallelism.context_parallel_size": row.cp_degree,
        **piped,
        **cut,
        **beside,
        "parallelism.recompute_layer": row.recompute == "full",
        "optimizer.zero_stage": 0 if row.sharding == "z0" else 1,
        "tokens.micro_batch_size": row.mbs,
        "tokens.batch_accumulation_per_replica": row.micro_batches,
    }


TARGET = ReadTarget(
    name="nanotron",
    title=TITLE,
    version="0.5 (2025)",
    like="megatron",
    says=_says,
    read=read,
    recognised=_recognised,
    overrides=lambda launch: overrides.by_options(launch.words),
    software="nanotron",
)
