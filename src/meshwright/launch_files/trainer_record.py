"""Files of options that trainers are started with, or leave behind, as the command that they stand for.

Sources: TrlParser of trl (trl/scripts/utils.py, 2025) and HfArgumentParser of transformers: keys are the options of the
program, whichever they are. ms-swift takes such a file (swift/cli/main.py) and writes `args.json` (BaseArguments of
swift/arguments); Firefly takes `--train_args_file` (train.py, 2025), whose `train_mode` is qlora where it is not said.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from meshwright.errors import InputError, Problem
from meshwright.formats.files import parsed
from meshwright.formats.megatron.records import command_of, key_line

TRAINER = "trl"
"""The record of a trainer's options."""
SWIFT = "swift-args"
"""Name of ms-swift's files of options."""
SUFFIXES = (".json", ".yaml", ".yml")
INLINE = "ds_config_in_{name}.json"
"""Name of the configuration of DeepSpeed that stands in a file of options itself."""
_BATCH = "per_device_train_batch_size"
_KEY = r"^[ \t]*(?:[{\"][ \t]*)?\"?"
_OWN = re.compile(rf"{_KEY}{_BATCH}\"?[ \t]*:", re.MULTILINE)
_MODEL = re.compile(rf"{_KEY}(?:model_name_or_path|model)\"?[ \t]*:", re.MULTILINE)
_OTHERS = ("finetuning_type", "base_model", "stage", "cutoff_len", "step_scheduler", "template")
"""Keys of LLaMA-Factory, Axolotl and Automodel."""
_OF_SWIFT = ("tuner_type", "train_type", "sft_type")
_OF_FIREFLY = ("train_file", "template_name", "task_type", "train_mode")
_SEVERAL = (
    *("reward_model_path", "num_generations", "teacher_model_name_or_path", "beta", "max_prompt_length"),
    *("rlhf_type", "ref_model", "loss_type"),
)
"""Options of trainers on pairs, rewards and answers, or with a second model."""
_ENGINES = ("fsdp", "fsdp_config", "deepspeed")
_LEFT_OUT = re.compile(
    r"(?:rank|local_rank|global_world_size|local_world_size|world_size|model_info|model_meta|hub_token|training_args"
    r"|rlhf_type|llamapro_\w+|\w*token)$"
)
"""What `args.json` of ms-swift has of its run, of tuners it does not use, and secrets."""


def recorded(name: str, text: str) -> str | None:
    """Which record a file of a trainer's options is, by its name and text; None where it is none.

    Args:
        name: the name of the file.
        text: the text of the file.
    """
    if not name.endswith(SUFFIXES) or not _OWN.search(text) or not _MODEL.search(text):
        return None
    keys = _keys(name, text)
    if keys is None or "model_name_or_path" not in keys:
        return SWIFT if keys is not None and any(one in keys for one in _OF_SWIFT) else None
    return TRAINER


def trainer_keys(name: str, text: str) -> Mapping[str, Any] | None:
    """Options that a program is started with in a file, by name; None where the file is none of options.

    Args:
        name: the name of the file.
        text: the text of the file.
    """
    return _keys(name, text) if name.endswith(SUFFIXES) and _OWN.search(text) else None


def _keys(name: str, text: str) -> Mapping[str, Any] | None:
    try:
        keys = parsed(text, "JSON" if name.endswith(".json") else "YAML", "file of a trainer's options")
    except InputError:
        return None
    if not isinstance(keys, dict) or _BATCH not in keys:
        return None
    of_others = any(one in keys for one in _OTHERS) and not any(one in keys for one in _OF_SWIFT)
    return None if of_others else keys


def words_of(keys: Mapping[str, Any], name: str) -> Iterator[tuple[str, list[str]]]:
    """Options of a program by the key that says them: the option and its values.

    Args:
        keys: the keys of the file.
        name: the name of the file, after which the engine is called that it holds.
    """
    for key, value in (*keys.items(), *_of_firefly(keys).items()):
        if value is None or value == "" or value == []:
            continue
        if key == "deepspeed" and isinstance(value, Mapping):
            yield key, [f"--{key}", INLINE.format(name=name)]
        elif key == "fsdp_config" and isinstance(value, Mapping):
            for inner, said in value.items():
                if isinstance(said, (bool, int, str)):
                    yield key, [f"--fsdp_{str(inner).removeprefix('fsdp_')}", str(said)]
        elif isinstance(value, Mapping):
            continue
        else:
            entries = value if isinstance(value, list) else [value]
            texts = [str(one) for one in entries if not isinstance(one, (dict, list))]
            yield key, [f"--{key}", *texts]


def engine_inside(keys: Mapping[str, Any], name: str) -> tuple[str, str] | None:
    """Name and text of the configuration of DeepSpeed that a file of options holds itself; None where it has none."""
    held = keys.get("deepspeed")
    return (INLINE.format(name=name), json.dumps(held)) if isinstance(held, Mapping) else None


def _of_firefly(keys: Mapping[str, Any]) -> dict[str, Any]:
    """What Firefly makes of `train_mode`: adapters on all products, beside weights in 4 bits but for `lora`."""
    if not {_OF_FIREFLY[0]} & keys.keys() or len({*_OF_FIREFLY} & keys.keys()) < 2:
        return {}
    mode = str(keys.get("train_mode", "qlora"))
    if mode not in ("lora", "qlora"):
        return {}
    found = {"use_lora": True, "lora_rank": keys.get("lora_rank", 64), "lora_target_modules": "all-linear"}
    return {**found, **({"load_in_4bit": True} if mode == "qlora" else {})}


def command_recorded(text: str, over: Mapping[str, str], record: str = TRAINER, name: str = "args.yaml") -> str:
    """The command that a file of options stands for, every option on the line it has in the file.

    Args:
        text: the text of the file.
        over: options that stand over those of the file.
        record: the kind of record, `trl` or `swift-args`.
        name: the name of the file.

    Raises:
        InputError: the text is no table, or its trainer runs more than one pass over a sequence.
    """
    language = "JSON" if text.lstrip().startswith("{") else "YAML"
    keys = parsed(text, language, "file of a trainer's options")
    if not isinstance(keys, dict):
        raise InputError(Problem(what="the file of a trainer's options holds no keys", why="it must be a table"))
    if problems := list(_refused(keys)):
        raise InputError(problems, code="MW231")
    lines = text.split("\n")
    said: dict[int, list[str]] = {}
    for key, (option, *values) in words_of(keys, name):
        if key in over or (record == SWIFT and _LEFT_OUT.match(key)):
            continue
        if values == ["False"] and record == TRAINER:
            continue
        words = "" if values == ["True"] and record == TRAINER else " ".join(shlex.quote(one) for one in values)
        said.setdefault(key_line(lines, key), []).append(f"{option} {words}".rstrip().replace("\n", " "))
    command = command_of(said, _start(keys, record))
    engine = engine_inside(keys, name)
    return command if engine is None else f"{command}\ncat > {engine[0]} <<'END'\n{engine[1]}\nEND\n"


def _start(keys: Mapping[str, Any], record: str) -> str:
    if record == TRAINER:
        return "accelerate launch sft.py"
    world = keys.get("global_world_size")
    return f"{f'NPROC_PER_NODE={world} ' if type(world) is int and world > 1 else ''}swift sft"


def engine_open(text: str, over: Mapping[str, str]) -> tuple[Problem, ...]:
    """Asks what shards the weights and the format of products, which the configuration of Accelerate beside it says."""
    keys = parsed(text, "JSON" if text.lstrip().startswith("{") else "YAML", "file of a trainer's options")
    assert isinstance(keys, dict)
    said = {*over, *(name for name, value in keys.items() if value not in (None, "", [], False))}
    found = []
    if not said & {*_ENGINES}:
        why = "the configuration of Accelerate that the trainer is started with says it, and is not in this file"
        fix = (
            "give --set fsdp=full_shard, --set deepspeed=ds_config.json, or --set fsdp=no for whole copies on every GPU"
        )
        found.append(Problem(what="what shards the model is not known", why=why, fix=fix, field="fsdp"))
    if "deepspeed" not in said and not any(name in over or name in keys for name in _FORMATS):
        why = "the file has neither bf16 nor fp16: Accelerate's configuration says it, and some trainers take bf16"
        fix = "give --set bf16=true, --set fp16=true, or --set bf16=false for fp32"
        found.append(Problem(what="the format of products is not known", why=why, fix=fix, field="bf16"))
    return tuple(found)


_FORMATS = ("bf16", "fp16", "mixed_precision")


def _refused(keys: Mapping[str, object]) -> Iterator[Problem]:
    # A file that a run of ms-swift has left states defaults of other trainings, too.
    several = ("rlhf_type",) if any(one in keys for one in _OF_SWIFT) else _SEVERAL
    found = [name for name in several if keys.get(name) is not None]
    if str(keys.get("task_type")).lower() in ("dpo", "rm", "ppo", "grpo", "kto", "orpo"):
        found = ["task_type", *found]
    if found:
        why = "it trains on pairs or rewards: more than one pass runs a sequence, which no plan here prices"
        what = f"task_type is {keys['task_type']}" if found[0] == "task_type" else f"{found[0]} is given"
        yield Problem(what=what, why=why, fix="check a file of SFT or pretraining", field=found[0])
