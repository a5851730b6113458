"""What the words of a command, or the keys of a configuration, say of a plan: a reader of its own, for comparison.

Small tables and no code of the package: where both readers agree on a file, neither has misread it alone.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from benchmarks.facts_of_keys import Facts, of_words

Find = Callable[[str], Path | None]
"""A file by the path that a command names."""


def words_after(argv: Sequence[str]) -> tuple[list[str], str, list[str]]:
    """Words of the launcher, the program, and the words behind it."""
    for at, one in enumerate(argv):
        name = one.rpartition("/")[2]
        if name in ("llamafactory-cli", "axolotl", "automodel", "swift", "litgpt", "tune", "xtuner", "composer"):
            return list(argv[:at]), name, list(argv[at + 1 :])
        if one.endswith(".py") and not one.startswith("-"):
            return list(argv[:at]), one, list(argv[at + 1 :])
        if one in ("-m", "--module") and at and at + 1 < len(argv) and not argv[at + 1].startswith("torch.distributed"):
            return list(argv[:at]), argv[at + 1], list(argv[at + 2 :])
    return list(argv), "", []


def options(words: Sequence[str]) -> dict[str, list[str]]:
    """Options by name without dashes at the front, `-` for `_`; the last of each."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            name, equals, value = word.lstrip("-").partition("=")
            name = name.replace("_", "-")
            found[name] = [value] if equals else []
        elif name:
            found[name].append(word)
    return found


def devices_of(launcher: Sequence[str]) -> int | None:
    """Processes that a launcher starts, where its words say so."""
    given = options(launcher)

    def whole(*names: str) -> int | None:
        for name in names:
            text = (given.get(name) or [""])[0].partition(":")[0]
            if text.isdigit():
                return int(text)
        return None

    each, nodes = whole("nproc-per-node", "num-gpus"), whole("nnodes", "num-nodes", "num-machines")
    if each is not None:
        return each * (nodes or 1)
    include = (given.get("include") or [""])[0]
    if include.startswith("localhost:"):
        return len(include.partition(":")[2].split(","))
    return whole("num-processes")


def of_command(argv: Sequence[str], find: Find) -> tuple[str, Facts]:
    """The kind of trainer that a command starts, and what its words and files say."""
    launcher, _, words = words_after(argv)
    given = options(words)
    devices = devices_of(launcher)
    if {"micro-batch-size", "num-layers", "tensor-model-parallel-size", "hidden-size"} & given.keys():
        return "megatron", _of_megatron(given, devices, find)
    if "per-device-train-batch-size" in given:
        facts = _of_trainer({name.replace("-", "_"): _value(value) for name, value in given.items()}, devices, find)
        return "trainer", _of_accelerate_launcher(facts, options(launcher), find)
    kind, facts = of_words(words)
    if kind:
        return kind, {**facts, "devices": devices} if devices else facts
    config = next(
        (one for one in words if re.search(r"\.(ya?ml|json|toml)$", one) and find(one.partition("=")[2] or one)), None
    )
    if config is not None:
        path = find(config.partition("=")[2] or config)
        assert path is not None
        kind, facts = of_file(path, find, over=_settings(words), devices=devices)
        return kind, _of_accelerate_launcher(facts, options(launcher), find)
    return "", {}


def _settings(words: Sequence[str]) -> dict[str, Any]:
    found = {}
    for one in words:
        name, equals, value = one.lstrip("-").partition("=")
        if equals and re.fullmatch(r"[\w.]+", name):
            found[name] = _value([value])
    for one, following in pairwise([*words, "--"]):
        if one.startswith("--") and "=" not in one and not following.startswith("--"):
            found[one[2:]] = _value([following])
    return found


def _value(words: Sequence[str]) -> Any:
    if not words:
        return True
    text = " ".join(words)
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _of_megatron(given: Mapping[str, list[str]], devices: int | None, find: Find) -> Facts:
    def whole(name: str, default: int | None = None) -> int | None:
        value = given.get(name)
        return int(value[0]) if value and re.fullmatch(r"\d+", value[0]) else default

    facts: Facts = {
        "tp": whole("tensor-model-parallel-size", 1),
        "pp": whole("pipeline-model-parallel-size", 1),
        "cp": whole("context-parallel-size", 1),
        "ep": whole("expert-model-parallel-size", 1),
        "mbs": whole("micro-batch-size"),
        "gbs": whole("global-batch-size"),
        "seq": whole("seq-length"),
        "layers": whole("num-layers"),
        "hidden": whole("hidden-size"),
        "heads": whole("num-attention-heads"),
        "devices": devices,
        "experts": whole("num-experts") if whole("num-experts", 1) != 1 else None,
        "topk": whole("moe-router-topk") if whole("num-experts", 1) != 1 else None,
    }
    facts["compute"] = (
        "fp8"
        if given.keys() & {"fp8-format", "fp8-hybrid"}
        else "bf16"
        if "bf16" in given
        else "fp16"
        if "fp16" in given
        else "fp32"
    )
    if "num-query-groups" in given and "group-query-attention" in given:
        facts["kv"] = whole("num-query-groups")
    if "ffn-hidden-size" in given:
        facts["ffn"] = whole("ffn-hidden-size")
    if facts["tp"] and facts["tp"] > 1:
        facts["sp"] = "sequence-parallel" in given
    if "ds-sequence-parallel-size" in given and "deepspeed" in given:
        facts["cp"] = whole("ds-sequence-parallel-size")
    if devices and facts["tp"]:
        facts["dp"] = devices // (facts["tp"] * facts["pp"] * facts["cp"])
        if facts["gbs"] is None and facts["mbs"]:
            facts["gbs"] = facts["mbs"] * facts["dp"]
    full = (given.get("recompute-granularity") or [""])[0]
    old = given.keys() & {"checkpoint-activations", "recompute-activations"}
    facts["recompute"] = {"full": "full", "selective": "sel"}.get(full) or (
        "none" if not old else "full" if "checkpoint-activations" in given else "sel"
    )
    if "deepspeed" in given:
        stage = whole("zero-stage")
        path = find((given.get("deepspeed-config") or [""])[0])
        if path is not None:
            stage = _json(path).get("zero_optimization", {}).get("stage", 0)
        own = stage == 0 and "bf16" in given and "no-pipeline-parallel" not in given  # its optimizer shards its states
        facts["zero"] = "z1" if own else _STAGES.get(stage)
        if "moe-expert-parallel-size" in given:
            facts["ep"] = whole("moe-expert-parallel-size")
        if "deepspeed-activation-checkpointing" in given:
            facts["recompute"] = None
    elif given.keys() & {"use-torch-fsdp2", "use-megatron-fsdp", "use-custom-fsdp"}:
        facts["zero"] = None
    else:
        facts["zero"] = "z1" if "use-distributed-optimizer" in given else "z0"
    return {name: value for name, value in facts.items() if value is not None}


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(errors="replace"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _on(value: Any) -> bool:
    return value is True or str(value).lower() in ("true", "1", "yes", "auto")


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


_LENGTHS = ("model_max_length", "max_seq_length", "max_length", "cutoff_len", "max_seq_len", "block_size")


def _of_trainer(keys: Mapping[str, Any], devices: int | None, find: Find) -> Facts:
    facts: Facts = {"mbs": _number(keys.get("per_device_train_batch_size", 8)), "devices": devices}
    steps = _number(keys.get("gradient_accumulation_steps", 1)) or 1
    facts["steps"] = steps
    facts["compute"] = "bf16" if _on(keys.get("bf16", False)) else "fp16" if _on(keys.get("fp16", False)) else None
    if "gradient_checkpointing" in keys:
        facts["recompute"] = "full" if _on(keys["gradient_checkpointing"]) else "none"
    facts["seq"] = next((_number(keys[one]) for one in _LENGTHS if one in keys), None)
    adapted = _on(keys.get("use_peft", True)) and _on(keys.get("use_lora", True))
    facts["rank"] = next((_number(keys[one]) for one in ("lora_r", "lora_rank") if one in keys and adapted), None)
    engine = keys.get("deepspeed")
    if isinstance(engine, str) and (path := find(engine)) is not None:
        facts |= _of_deepspeed(_json(path))
    fsdp = str(keys.get("fsdp") or "")
    if fsdp:
        facts["zero"] = "grad" if "shard_grad_op" in fsdp else "z0" if "no_shard" in fsdp else "full"
    return {name: value for name, value in facts.items() if value is not None}


_STAGES = {0: "z0", 1: "z1", 2: "grad", 3: "full"}


def _of_deepspeed(keys: Mapping[str, Any]) -> Facts:
    zero = keys.get("zero_optimization") or {}
    zero = zero if isinstance(zero, Mapping) else {"stage": 1}  # `true`, as DeepSpeed's first files have it
    found: Facts = {"zero": _STAGES.get(_number(zero.get("stage", 0)))}
    moved = ""
    # Below ZeRO-3 the engine is not given where weights go.
    if found["zero"] == "full" and str((zero.get("offload_param") or {}).get("device", "none")).lower() not in (
        "none",
        "null",
    ):
        moved += "w"
    if str((zero.get("offload_optimizer") or {}).get("device", "none")).lower() not in ("none", "null") or zero.get(
        "cpu_offload"
    ):
        moved += "o"
    found["offload"] = moved
    return found


def _of_accelerate_launcher(facts: Facts, launcher: Mapping[str, list[str]], find: Find) -> Facts:
    name = (launcher.get("config-file") or [""])[0]
    path = find(name) if name else None
    if path is None:
        return facts
    keys = load_keys(path)
    own = of_accelerate(keys, find)
    return {**facts, **own, **({"devices": facts["devices"]} if "devices" in facts else {})}


def of_accelerate(keys: Mapping[str, Any], find: Find) -> Facts:
    """Keys of a configuration of Accelerate."""
    facts: Facts = {"devices": _number(keys.get("num_processes"))}
    kind = str(keys.get("distributed_type", "")).upper()
    if kind == "DEEPSPEED":
        engine = keys.get("deepspeed_config") or {}
        path = find(str(engine["deepspeed_config_file"])) if engine.get("deepspeed_config_file") else None
        if path is not None:
            facts |= _of_deepspeed(_json(path))
        elif "zero_stage" in engine:
            facts["zero"] = _STAGES.get(_number(engine["zero_stage"]))
            host = facts["zero"] == "full" and engine.get("offload_param_device", "none") not in ("none", None)
            moved = "w" * host
            facts["offload"] = moved + "o" * (engine.get("offload_optimizer_device", "none") not in ("none", None))
    elif kind == "FSDP":
        engine = keys.get("fsdp_config") or {}
        way = str(engine.get("fsdp_sharding_strategy", "FULL_SHARD"))
        facts["zero"] = {
            "FULL_SHARD": "full",
            "1": "full",
            "SHARD_GRAD_OP": "grad",
            "2": "grad",
            "NO_SHARD": "z0",
            "3": "z0",
        }.get(way)
        if int(engine.get("fsdp_version", 1) or 1) == 2:
            facts["zero"] = "full" if engine.get("fsdp_reshard_after_forward", True) else "grad"
    elif kind in ("MULTI_GPU", "NO"):
        facts["zero"] = "z0"
    return {name: value for name, value in facts.items() if value is not None}


def load_keys(path: Path) -> dict[str, Any]:
    """The table of keys of a file; empty where it holds none."""
    text = path.read_text(errors="replace")
    try:
        if path.suffix == ".toml":
            return tomllib.loads(text)
        found = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}


def kind_of(keys: Mapping[str, Any], text: str) -> str:
    """The trainer whose configuration these keys are; empty where it is none of those known here."""
    if "base_model" in keys and ("micro_batch_size" in keys or "sequence_len" in keys):
        return "axolotl"
    if "stage" in keys and ("per_device_train_batch_size" in keys or "finetuning_type" in keys):
        return "llamafactory"
    if "compute_environment" in keys or "distributed_type" in keys:
        return "accelerate"
    if "zero_optimization" in keys or "train_micro_batch_size_per_gpu" in keys:
        return "neox" if "pipe-parallel-size" in text.replace("_", "-") else "deepspeed"
    if "pipe-parallel-size" in text.replace("_", "-"):
        return "neox"
    parallel = keys.get("parallelism")
    if isinstance(parallel, dict) and "tokens" in keys:
        return "nanotron"
    if (
        isinstance(keys.get("training"), dict)
        and isinstance(keys.get("model"), dict)
        and ("flavor" in keys["model"] or "job" in keys)
    ):
        return "titan"
    if "per_device_train_batch_size" in keys:
        return "trainer"
    model = keys.get("model")
    if isinstance(model, dict) and "tensor_model_parallel_size" in model and "trainer" in keys:
        return "nemo"
    if "_target_: nemo_automodel" in text or "nemo_automodel" in text:
        return "automodel"
    if "device_train_microbatch_size" in text:
        return "foundry"
    return ""


def of_file(
    path: Path, find: Find, over: Mapping[str, Any] | None = None, devices: int | None = None
) -> tuple[str, Facts]:
    """The kind of a configuration, and what it says with keys of a command over its own."""
    text, keys = path.read_text(errors="replace"), load_keys(path)
    kind = kind_of(keys, text)
    for name, value in (over or {}).items():
        place = keys
        *folders, last = name.split(".")
        for folder in folders:
            place = place.setdefault(folder, {}) if isinstance(place, dict) else {}
        if isinstance(place, dict):
            place[last] = value
    reader = _READERS.get(kind)
    facts = reader(keys, devices, find) if reader else {}
    return kind, {name: value for name, value in facts.items() if value is not None}


def _axolotl(keys: Mapping[str, Any], devices: int | None, find: Find) -> Facts:
    facts: Facts = {
        "mbs": _number(keys.get("micro_batch_size")),
        "steps": _number(keys.get("gradient_accumulation_steps", 1)),
        "seq": _number(keys.get("sequence_len")),
        "devices": devices,
    }
    facts["compute"] = "bf16" if _on(keys.get("bf16")) else "fp16" if _on(keys.get("fp16")) else None
    if "gradient_checkpointing" in keys:
        facts["recompute"] = "full" if _on(keys["gradient_checkpointing"]) else "none"
    shards = keys.get("fsdp_config") or {}
    if _on(shards.get("fsdp_activation_checkpointing", shards.get("activation_checkpointing", False))):
        facts["recompute"] = "full"
    engine = keys.get("deepspeed")
    if isinstance(engine, str) and (path := find(engine)) is not None:
        facts |= _of_deepspeed(_json(path))
    elif not engine and not keys.get("fsdp") and not keys.get("fsdp_config"):
        facts["zero"] = "z0"
    if keys.get("adapter") in ("lora", "qlora"):
        facts["rank"] = _number(keys.get("lora_r"))
    return facts


def _llamafactory(keys: Mapping[str, Any], devices: int | None, find: Find) -> Facts:
    facts = _of_trainer(keys, devices, find)
    facts["seq"] = _number(keys.get("cutoff_len", 2048))
    facts["recompute"] = "none" if _on(keys.get("disable_gradient_checkpointing", False)) else "full"
    if keys.get("finetuning_type", "lora") == "lora":
        facts["rank"] = _number(keys.get("lora_rank", 8))
    if not keys.get("deepspeed") and not keys.get("fsdp"):
        facts.setdefault("zero", "z0")
    return facts


def _nanotron(keys: Mapping[str, Any], devices: int | None, find: Find) -> Facts:
    ways, tokens = keys["parallelism"], keys["tokens"]
    facts: Facts = {name: _number(ways.get(name, 1)) for name in ("tp", "pp", "dp")}
    facts |= {
        "cp": _number(ways.get("context_parallel_size", 1)),
        "mbs": _number(tokens.get("micro_batch_size")),
        "seq": _number(tokens.get("sequence_length")),
    }
    facts["steps"] = _number(tokens.get("batch_accumulation_per_replica", 1))
    stage = (keys.get("optimizer") or {}).get("zero_stage")
    facts["zero"] = None if stage is None else f"z{stage}"
    config = (keys.get("model") or {}).get("model_config") or {}
    facts |= {
        "layers": _number(config.get("num_hidden_layers")),
        "hidden": _number(config.get("hidden_size")),
        "heads": _number(config.get("num_attention_heads")),
    }
    return facts


def _titan(keys: Mapping[str, Any], devices: int | None, find: Find) -> Facts:
    training, ways = keys["training"], {**(keys.get("parallelism") or {}), **(keys.get("experimental") or {})}
    facts: Facts = {
        "mbs": _number(training.get("local_batch_size", training.get("batch_size"))),
        "seq": _number(training.get("seq_len")),
        "gbs": _number(training.get("global_batch_size")),
    }
    facts["gbs"] = None if facts["gbs"] is None or facts["gbs"] < 0 else facts["gbs"]
    for name, others in {
        "tp": ("tensor_parallel_degree",),
        "pp": ("pipeline_parallel_degree",),
        "cp": ("context_parallel_degree",),
        "ep": ("expert_parallel_degree",),
    }.items():
        value = next(
            (ways[one] if one in ways else training.get(one) for one in others if one in ways or one in training), 1
        )
        facts[name] = _number(value)
    mode = (keys.get("activation_checkpoint") or {}).get("mode")
    facts["recompute"] = {"full": "full", "none": "none"}.get(str(mode))
    return facts


def _nemo(keys: Mapping[str, Any], devices: int | None, find: Find) -> Facts:
    model, trainer = keys["model"], keys.get("trainer") or {}
    facts: Facts = {
        "tp": _number(model.get("tensor_model_parallel_size")),
        "pp": _number(model.get("pipeline_model_parallel_size")),
        "mbs": _number(model.get("micro_batch_size")),
        "gbs": _number(model.get("global_batch_size")),
    }
    facts |= {
        "seq": _number(model.get("encoder_seq_length")),
        "layers": _number(model.get("num_layers")),
        "hidden": _number(model.get("hidden_size")),
    }
    each, nodes = _number(trainer.get("devices")), _number(trainer.get("num_nodes", 1))
    facts["devices"] = each * nodes if each and nodes else None
    return facts


def _neox(keys: Mapping[str, Any], devices: int | None, find: Find) -> Facts:
    plain = {str(name).replace("-", "_"): value for name, value in keys.items()}
    facts: Facts = {
        "tp": _number(plain.get("model_parallel_size", 1)),
        "pp": max(1, _number(plain.get("pipe_parallel_size", 1)) or 1),
        "mbs": _number(plain.get("train_micro_batch_size_per_gpu")),
        "seq": _number(plain.get("seq_length")),
        "layers": _number(plain.get("num_layers")),
        "hidden": _number(plain.get("hidden_size")),
        "heads": _number(plain.get("num_attention_heads")),
    }
    stage = _number((plain.get("zero_optimization") or {}).get("stage"))
    facts["zero"] = _STAGES.get(stage)
    facts["steps"] = _number(plain.get("gradient_accumulation_steps", 1)) if "train_batch_size" not in plain else None
    facts["gbs"] = _number(plain.get("train_batch_size"))
    return facts


def _automodel(keys: Mapping[str, Any], devices: int | None, find: Find) -> Facts:
    ways, step = keys.get("distributed") or {}, keys.get("step_scheduler") or {}
    staged = (ways.get("pipeline") or {}).get("pp_microbatch_size") if (ways.get("pp_size") or 1) > 1 else None
    facts: Facts = {"gbs": _number(step.get("global_batch_size"))}
    facts["mbs"] = _number(step.get("local_batch_size")) if staged is None else _number(staged)
    for name in ("tp", "cp", "ep", "pp"):
        facts[name] = _number(ways.get(f"{name}_size", 1)) or 1
    if isinstance(keys.get("peft"), dict):
        facts["rank"] = _number(keys["peft"].get("dim"))
    return facts


def _foundry(keys: Mapping[str, Any], devices: int | None, find: Find) -> Facts:
    size = keys.get("device_train_microbatch_size")
    return {"mbs": _number(size), "gbs": _number(keys.get("global_train_batch_size"))}


_READERS: dict[str, Callable[[Mapping[str, Any], int | None, Find], Facts]] = {
    "axolotl": _axolotl,
    "llamafactory": _llamafactory,
    "accelerate": lambda keys, devices, find: of_accelerate(keys, find),
    "deepspeed": lambda keys, devices, find: (
        _of_deepspeed(keys)
        | {"mbs": _number(keys.get("train_micro_batch_size_per_gpu")), "gbs": _number(keys.get("train_batch_size"))}
    ),
    "nanotron": _nanotron,
    "titan": _titan,
    "trainer": _of_trainer,
    "nemo": _nemo,
    "neox": _neox,
    "automodel": _automodel,
    "foundry": _foundry,
}
