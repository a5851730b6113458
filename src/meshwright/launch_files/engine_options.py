"""What shards where options alone start a trainer: those of Accelerate's launcher, the trainer or the program."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from meshwright.errors import Problem
from meshwright.formats.shell import Launch
from meshwright.formats.shell.asking import Open, questions_for
from meshwright.formats.shell.launch import processes
from meshwright.formats.shell.values import Word
from meshwright.launch_files.trainer_option_names import MAKES_ENGINE
from meshwright.launch_files.trainer_options import names_engine, read_trainer_options
from meshwright.units import number_or_word, whole_number

ARGUMENTS = "training_args.json"
"""What trainers take as options: the same names as in this file."""
LAUNCHER = "options of the launcher"
"""Stands for a configuration of Accelerate where its own options, and the trainer's, say all of it."""
_ENGINES = (
    *("deepspeed", "deepspeed_config", "deepspeed_config_file", "deepspeed_config_path"),
    *("ds_config", "ds_config_file", "ds_config_path", "config_file", "fsdp_config"),
)
"""Options that name the configuration of an engine."""
_SWITCHES = ("", "true", "false", "1", "0")


def missing_engine(launch: Launch, read: Callable[[str], str | None]) -> Iterator[Problem]:
    """Configurations that a program is started with and that were not found: what they say is in no option."""
    for name, path in engine_files(launch):
        if name != OF_ACCELERATE and not (name == _SHARDS and _table(read(path)) is not None):
            why = f"it says what is sharded and offloaded ({launch.place})"
            yield Problem(what=f"{path[:80]} is not here", why=why, fix="put it beside the script", field=f"--{name}")


_SHARDS = "fsdp_config"
"""The option of the trainer of transformers that names a JSON of how FSDP shards, or holds it."""


def _table(text: str | None) -> dict[str, Any] | None:
    """The keys of a JSON; None where it is none."""
    try:
        keys = json.loads(text) if text is not None else None
    except (ValueError, RecursionError):
        return None
    return keys if isinstance(keys, dict) else None


def _of_shards(launch: Launch, read: Callable[[str], str | None]) -> dict[str, str]:
    """What the trainer's JSON of FSDP says, as options of `accelerate launch` would.

    Source: `fsdp_config` of TrainingArguments (transformers 4 and 5): names with or without `fsdp_` before them.
    """
    found: dict[str, str] = {}
    for one, following in pairwise([*(word.text for word in launch.words), ""]):
        flag, equals, value = one.partition("=")
        if flag.removeprefix("--").replace("-", "_") == _SHARDS and flag.startswith("--"):
            said = value if equals else following
            for name, held in (_table(said if said.lstrip().startswith("{") else read(said)) or {}).items():
                found[f"fsdp_{str(name).removeprefix('fsdp_')}"] = str(held).lower()
    return found


OF_ACCELERATE = "deepspeed_config_file"
"""The option of `accelerate launch`, whose configuration names the file."""


def engine_files(launch: Launch) -> Iterator[tuple[str, str]]:
    """Options that name the configuration of an engine, with its path, of whatever suffix."""
    words = [word.text for word in (*launch.launcher, *launch.words)]
    for one, following in pairwise([*words, ""]):
        flag, equals, value = one.partition("=")
        name, path = flag.removeprefix("--").replace("-", "_"), value if equals else following
        plain = path.lower() not in _SWITCHES and not path.startswith("-") and "{" not in path
        if flag.startswith("--") and name in _ENGINES and plain:
            yield name, path


def unknown_engine(launch: Launch) -> Iterator[Problem]:
    """Engines whose configuration nobody can know: without it a plan of shards would be one of copies."""
    words = [*launch.launcher, *launch.words]
    for one, following in pairwise([*words, None]):
        assert one is not None
        name, equals, _ = one.text.partition("=")
        value = one if equals else following
        unknown = None if value is None else value.unknown
        if name.startswith("--") and name[2:].replace("-", "_") in _ENGINES and unknown is not None:
            yield from questions_for([Open(what=name, unknown=unknown, place=one.place, field=name)])


_STAGES = ("--zero_stage", "--zero-stage")
_BY_PROGRAM = (*_STAGES, "--offload", "--offload_reference_model")


def engine_of_its_own(launch: Launch) -> Iterator[Problem]:
    """A program that makes DeepSpeed's configuration itself, from options of its own."""
    words = [word.text for word in launch.words]
    bare = any(one == "--deepspeed" and following.startswith("-") for one, following in pairwise([*words, "-"]))
    if any(one.startswith(("--deepspeed_config", "--deepspeed=")) for one in words) or engine_made(launch) is not None:
        return
    if any(question.field in _STAGES for question in read_trainer_options(launch).questions):
        return  # it is asked for
    own = next((one for one in words if one.partition("=")[0] in _BY_PROGRAM), None)
    if own is not None or bare:
        program = launch.program.rpartition("/")[2]
        why = f"it makes DeepSpeed's configuration itself ({launch.place}), which says what is sharded"
        fix = "check that configuration, as DeepSpeed prints it when it starts: check MODEL ds_config.json"
        yield Problem(what=f"{program} takes {own or '--deepspeed'}", why=why, fix=fix, field=own or "--deepspeed")


def is_trainer(launch: Launch) -> bool:
    """Whether a program takes the options of the trainer of transformers."""
    return any(
        word.text.partition("=")[0].replace("-", "_") == "__per_device_train_batch_size" for word in launch.words
    )


def engine_made(launch: Launch) -> dict[str, Any] | None:
    """The engine of a program that makes DeepSpeed's configuration from `--zero_stage`, as keys of Accelerate.

    None where its stage is not given or not known, or a file says it.

    Source: get_train_ds_config of dschat/utils/ds_utils.py, and main.py of its first step (DeepSpeedExamples, 2025).
    """
    said = _options(launch.words)
    stage = next((said[name] for name in MAKES_ENGINE if name in said), "")
    if not stage.isdecimal() or names_engine(launch) or OF_ACCELERATE in _options(launch.launcher):
        return None
    moved = "cpu" if said.get("offload", "false") != "false" else "none"
    half = next((name for name in ("bf16", "fp16") if said.get(name, "false") != "false"), said.get("dtype", "fp16"))
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "DEEPSPEED",
        "mixed_precision": half,
        "num_processes": processes(launch.launcher)[0],
        "deepspeed_config": {
            "zero_stage": int(stage),
            "offload_optimizer_device": moved,
            "offload_param_device": moved,
        },
    }


def engine_notes(launch: Launch) -> Iterator[str]:
    """Says what was taken of a program that makes DeepSpeed's configuration itself."""
    said = _options(launch.words)
    if engine_made(launch) is not None:
        program = launch.program.rpartition("/")[2]
        half = "" if {"dtype", "bf16", "fp16"} & said.keys() else "; fp16 where no --dtype is given"
        yield f"{program} makes DeepSpeed's configuration itself: taken as that of DeepSpeed-Chat{half}"


def by_options(launch: Launch, read: Callable[[str], str | None]) -> dict[str, str]:
    """What the options of a launcher and of a trainer say of its engine, as the files they could stand in."""
    options = read_trainer_options(launch)
    arguments = {ARGUMENTS: json.dumps(options.arguments)}
    own = _options(launch.launcher)
    if (made := engine_made(launch)) is not None:
        # The format stands in the engine: weights that are loaded in it have fp32 copies.
        trainer = {name: value for name, value in options.arguments.items() if name not in ("dtype", "torch_dtype")}
        return {LAUNCHER: json.dumps(made), ARGUMENTS: json.dumps(trainer)}
    if own.get("use_deepspeed", "false") != "false" or OF_ACCELERATE in own:
        return {**_by_deepspeed(launch, own, read), **arguments}
    said = {**own, **_of_shards(launch, read), **_options(launch.words)}
    if said.get("fsdp") in ("no", "false"):
        del said["fsdp"]
    fsdp = said.get("fsdp", "") if "fsdp" in said else "full_shard" if "use_fsdp" in said else ""
    version = whole_number(said.get("fsdp_version", "1"))
    names = ("hybrid_shard_zero2", "hybrid_shard", "shard_grad_op", "no_shard", "full_shard")
    strategy = next((name.upper() for name in names if name in fsdp), "FULL_SHARD")
    shards = {
        "fsdp_version": 1 if version is None else version,
        "fsdp_sharding_strategy": said.get("fsdp_sharding_strategy", strategy),
        "fsdp_offload_params": "offload" in fsdp or said.get("fsdp_offload_params", "") == "true",
        **({"fsdp_reshard_after_forward": False} if said.get("fsdp_reshard_after_forward") == "false" else {}),
        **({"fsdp_activation_checkpointing": True} if said.get("fsdp_activation_checkpointing") == "true" else {}),
    }
    keys = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if fsdp else "MULTI_GPU",
        **_format(said),
        "num_processes": processes(launch.launcher)[0],
        **_machines(said),
        **({"fsdp_config": shards} if fsdp else {}),
    }
    return {LAUNCHER: json.dumps(keys), **arguments}


def _format(said: Mapping[str, str]) -> dict[str, str]:
    """The number format, where the words say it."""
    return {"mixed_precision": said["mixed_precision"]} if "mixed_precision" in said else {}


def _machines(said: Mapping[str, str]) -> dict[str, int]:
    """Nodes that a launcher starts on: one where its words say none, nothing where they are not known."""
    nodes = whole_number(said.get("num_machines", said.get("nnodes", "1")))
    return {"num_machines": nodes} if nodes else {}


_DEEPSPEED = ("zero_stage", "offload_optimizer_device", "offload_param_device", "gradient_accumulation_steps")
"""Options of `accelerate launch` for DeepSpeed, as its configuration has them."""


def _by_deepspeed(launch: Launch, said: Mapping[str, str], read: Callable[[str], str | None]) -> dict[str, str]:
    """What `accelerate launch --use_deepspeed` says, as its configuration would, with the file that it names."""
    path = dict(engine_files(launch)).get(OF_ACCELERATE)
    own = {name: number_or_word(said[name]) for name in _DEEPSPEED if name in said}
    keys = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "DEEPSPEED",
        **_format(said),
        "num_processes": processes(launch.launcher)[0],
        "deepspeed_config": own if path is None else {OF_ACCELERATE: path},
    }
    text = None if path is None else read(path)
    return {LAUNCHER: json.dumps(keys), **({} if path is None or text is None else {path.rpartition("/")[2]: text})}


def _options(words: tuple[Word, ...]) -> dict[str, str]:
    """Options by name with what stands behind them."""
    found: dict[str, str] = {}
    name = ""
    for word in words:
        if word.text.startswith("--"):
            name, _, value = word.text.removeprefix("--").partition("=")
            name = name.replace("-", "_")
            found[name] = value.lower()
        elif name:
            found[name] = f"{found[name]} {word.text.lower()}".strip()
    return found
