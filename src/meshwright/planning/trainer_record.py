"""Files of options that trainers of transformers and TRL are started with (`trl sft --config FILE`), as that command.

Source: TrlParser of trl (trl/scripts/utils.py, 2025): keys are the options of the program, whichever they are.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

from meshwright.errors import InputError, Problem
from meshwright.formats.files import parsed
from meshwright.formats.megatron.records import command_of, key_line

_OWN = re.compile(r"^per_device_train_batch_size\s*:", re.MULTILINE)
_MODEL = re.compile(r"^model_name_or_path\s*:", re.MULTILINE)
_OTHERS = re.compile(r"^(?:finetuning_type|base_model|stage|cutoff_len|step_scheduler|template)\s*:", re.MULTILINE)
"""Keys of LLaMA-Factory, Axolotl and Automodel."""
_SEVERAL = (
    "beta",
    "loss_type",
    "reward_model_path",
    "max_prompt_length",
    "num_generations",
    "teacher_model_name_or_path",
)
"""Options of trainers on pairs, rewards and answers, or with a second model."""
_ENGINES = ("fsdp", "fsdp_config", "deepspeed")


def recorded(name: str, text: str) -> bool:
    """Whether a file, by its name and text, holds the options of such a trainer."""
    yaml = name.endswith((".yaml", ".yml"))
    return yaml and bool(_OWN.search(text)) and bool(_MODEL.search(text)) and not _OTHERS.search(text)


def command_recorded(text: str, over: Mapping[str, str]) -> str:
    """The command that a file of options stands for, every option on the line it has in the file.

    Args:
        text: of the file.
        over: options that stand over those of the file.

    Raises:
        InputError: the text is no YAML, its trainer runs more than one pass over a sequence, or nobody says what
            shards its weights.
    """
    keys = parsed(text, "YAML", "file of a trainer's options")
    if not isinstance(keys, dict):
        raise InputError(Problem(what="the file of a trainer's options holds no keys", why="it must be a table"))
    if problems := list(_refused(keys)):
        raise InputError(problems, code="MW231")
    lines = text.split("\n")
    said: dict[int, list[str]] = {}
    for key, value in keys.items():
        if key in over or value is None or isinstance(value, dict) or value is False:
            continue
        entries = value if isinstance(value, list) else [] if value is True else [value]
        words = " ".join(shlex.quote(str(entry)) for entry in entries if not isinstance(entry, (dict, list)))
        said.setdefault(key_line(lines, str(key)), []).append(f"--{key} {words}".rstrip().replace("\n", " "))
    return command_of(said, "accelerate launch sft.py")


def engine_open(text: str, over: Mapping[str, str]) -> Problem | None:
    """Asks what shards the weights, which the configuration of Accelerate says that is given beside such a file."""
    said = {name for name in _ENGINES if name in over or re.search(rf"^{name}\s*:\s*\S", text, re.MULTILINE)}
    if said:
        return None
    why = "the configuration of Accelerate that the trainer is started with says it, and is not in this file"
    fix = "give --set fsdp=full_shard, --set deepspeed=ds_config.json, or --set fsdp=no where every GPU holds all of it"
    return Problem(what="what shards the model is not known", why=why, fix=fix, field="fsdp")


def _refused(keys: Mapping[str, object]) -> Iterator[Problem]:
    found = [name for name in _SEVERAL if keys.get(name) is not None]
    if found:
        why = "it trains on pairs or rewards: more than one pass runs a sequence, which no plan here prices"
        yield Problem(what=f"{found[0]} is given", why=why, fix="check a file of SFT or pretraining", field=found[0])
