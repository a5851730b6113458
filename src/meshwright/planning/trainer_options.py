"""Options of the programs around the trainer of transformers: its batch, the model, lengths and adapters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from meshwright.errors import Problem
from meshwright.formats.launch_file import Said
from meshwright.formats.shell import Launch, Word
from meshwright.formats.shell.asking import Open, questions_for

BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")
ARGUMENTS = (*BATCH, "gradient_checkpointing", "optim", "bf16", "fp16", "torch_dtype", "dtype")
"""Arguments of the trainer itself, by the names of its file."""
MODELS = ("model_name_or_path", "pretrained_model_name_or_path", "model_id", "base_model")
LENGTHS = ("max_seq_length", "max_seq_len", "model_max_length", "cutoff_len", "block_size", "seq_length", "max_length")
"""What programs call the length of a sequence."""
ADAPTERS = ("use_peft", "use_lora", "use_dora", "lora_r", "lora_target_modules", "load_in_4bit", "load_in_8bit")
_FILES = ("deepspeed", "deepspeed_config", "config", "config_file", "job.config_file", "fsdp")
_SHOWN = 16
_BOOLEAN = ("true", "false")
_DEGREE = re.compile(
    r"(?:^|_)(?:(?:tensor|pipeline|sequence|context|expert|model)_(?:model_)?parallel|[tspce]p_size|ulysses)"
)
"""Degrees as programs call them that split a job themselves."""
_KEY = re.compile(r"[a-z][a-z0-9_.]*")
"""Of `key=value`, as programs take it that are started with a file of keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerOptions:
    """What the options of a program say beside its configuration."""

    arguments: Mapping[str, object] = field(default_factory=dict)
    """Arguments of the trainer, by the names of its file."""
    job: Mapping[str, object] = field(default_factory=dict)
    """Model, length and adapters, as they were written."""
    rest: tuple[str, ...] = ()
    """Options that nobody here knows."""
    split: Mapping[str, int] = field(default_factory=dict)
    """Those of them that are degrees of a parallel strategy, and more than 1."""
    questions: tuple[Problem, ...] = ()
    """What depends on something that the script does not say."""

    @property
    def model(self) -> str | None:
        """The model's name."""
        return next((str(self.job[name]) for name in MODELS if self.job.get(name)), None)

    def problems(self) -> Iterator[Problem]:
        """Options of the program itself that split the job in a way that is not read."""
        for name, value in self.split.items():
            why = f"it splits the job in {value}, and what the program does with it is not known"
            fix = "leave it out to check the rest, or price the plan that it makes: check MODEL --plan PLAN"
            yield Problem(what=f"{name} is not read", why=why, fix=fix, field=name)

    @property
    def seq_len(self) -> int | None:
        """Tokens of a sequence."""
        stated = (self.job.get(name) for name in LENGTHS)
        return next((value for value in stated if type(value) is int and value > 0), None)

    @property
    def lora(self) -> str | None:
        """Adapters as `--lora` takes them; None where there are none.

        Source: ModelConfig of trl (trl/trainer/model_config.py, 2025): rank 16; where no target is named, peft takes
        queries and values of decoders (peft/utils/constants.py).
        """
        on = {name for name in ADAPTERS if self.job.get(name) in (True, 1, "")}
        if not on & {"use_peft", "use_lora"}:
            return None
        targets = self.job.get("lora_target_modules") or "q_proj,v_proj"
        parts = [f"r={self.job.get('lora_r', 16)}"]
        parts += [f"targets={targets}"] if targets != "all-linear" else []
        parts += ["base=nf4"] if "load_in_4bit" in on else ["base=int8"] if "load_in_8bit" in on else []
        return ",".join([*parts, *(["dora"] if "use_dora" in on else [])])

    def said(self, place: str) -> Iterator[Said]:
        """Options of the job with where they stand."""
        for name, value in self.job.items():
            yield Said(option=name, value="given" if value is True else str(value), place=place)

    def notes(self) -> Iterator[str]:
        """What was taken for granted, and what was not read."""
        if self.lora is not None and not self.job.get("lora_target_modules"):
            yield "no adapter targets are named: query and value projections are taken, as in PEFT"
        rest = [flag for flag in self.rest if flag.removeprefix("--") not in _FILES]
        if rest:
            more = f" and {len(rest) - _SHOWN} more" if len(rest) > _SHOWN else ""
            yield f"options of the program itself, not read: {', '.join(rest[:_SHOWN])}{more}"


def read_trainer_options(launch: Launch) -> TrainerOptions:
    """Options of a program that a script starts.

    Args:
        launch: the program with its words, as bash means them.
    """
    values: dict[str, object] = {}
    rest: list[str] = []
    split: dict[str, int] = {}
    unanswered: list[Open] = []
    known = (*ARGUMENTS, *MODELS, *LENGTHS, *ADAPTERS)
    words = list(launch.words)
    for at, word in enumerate(words):
        flag, equals, attached = word.text.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--") and not (equals and _KEY.fullmatch(flag)):
            continue
        if name not in known:
            rest.append(flag)
            degree = attached or (words[at + 1].text if at + 1 < len(words) else "")
            if _DEGREE.search(name) and degree.isdecimal() and int(degree) > 1:
                split[flag] = int(degree)
            continue
        end = next((i for i in range(at + 1, len(words)) if words[i].text.startswith("--")), len(words))
        held = [word] if equals else words[at + 1 : end]
        unknown = next((one.unknown for one in held if one.unknown is not None), None)
        if unknown is not None and name in MODELS and (last := _last_part(held[0])):
            values[name] = last
            continue
        if unknown is not None:
            unanswered.append(Open(what=flag, unknown=unknown, place=None, field=flag))
            continue
        texts = [attached] if equals else [one.text for one in held]
        values[name] = _value(",".join(texts) if name == "lora_target_modules" else (texts or ["true"])[0])
    questions = list(questions_for(unanswered))
    ranked = next((name for name in ("lora_r", "lora_target_modules") if name in values), None)
    if ranked is not None and not any(name in values for name in ("use_peft", "use_lora", "use_dora")):
        why = f"--{ranked} is given, and some programs need no other word"
        fix = "give --set use_peft=true, or --set use_peft=false where all of the model is trained"
        questions.append(
            Problem(what="whether adapters are trained is not known", why=why, fix=fix, field=f"--{ranked}")
        )
    left = [name for name in ("lora_r", "lora_target_modules") if name not in values]
    if left and values.get("use_lora") in (True, 1, "") and "use_peft" not in values:
        what = f"{' and '.join(left)} of the adapters {'are' if len(left) > 1 else 'is'} not known"
        why = "--use_lora is an option of the program itself, which has a default of its own"
        shown = {"lora_r": "lora_r=16", "lora_target_modules": "lora_target_modules=q_proj,v_proj"}
        fix = f"give {' '.join(f'--set {shown[name]}' for name in left)}, as the program has it"
        questions.append(Problem(what=what, why=why, fix=fix, field=f"--{left[0]}"))
    return TrainerOptions(
        arguments={name: value for name, value in values.items() if name in ARGUMENTS},
        job={name: value for name, value in values.items() if name not in ARGUMENTS},
        rest=tuple(rest),
        split=split,
        questions=tuple(questions),
    )


def _last_part(path: Word) -> str:
    """The end of a path, a model's own name, where only the folders before it are not known."""
    known = path.text.rpartition("/")[2]
    behind = ""
    for piece in reversed(path.pieces):
        if piece.unknown is not None:
            return known if "/" in behind else ""
        behind = piece.text + behind
    return known


def _value(text: str) -> object:
    """A number, a switch or a word."""
    return int(text) if text.isdecimal() else text.lower() == "true" if text.lower() in _BOOLEAN else text
