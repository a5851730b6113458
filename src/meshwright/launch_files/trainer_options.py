"""Options of the programs around the trainer of transformers: its batch, the model, lengths and adapters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from meshwright.errors import Problem
from meshwright.formats.launch_file import Said
from meshwright.formats.shell import Launch, ScriptLine, Unknown, Word
from meshwright.formats.shell.asking import Open, questions_for
from meshwright.launch_files.own_options import (
    CALLED,
    OWN_BATCH,
    OWN_MODELS,
    batch_asked,
    changes_plan,
    is_degree,
    leaves_alone,
)
from meshwright.launch_files.trainer_option_names import (
    ADAPTED,
    ADAPTERS,
    ARGUMENTS,
    ATTENTION,
    BATCH,
    BITS,
    FILES,
    KINDS,
    LENGTHS,
    LISTS,
    MAKES_ENGINE,
    MODELS,
    OPTIMIZERS,
    PIECES,
)
from meshwright.units import number_or_word

_FOR_ADAPTERS = re.compile(r"(?:^|[_.-])(?:q?lora|peft)(?=[_.-]|$)")
"""Marks the names of programs that train nothing but adapters."""
_MADE = (*MAKES_ENGINE, "offload")
_ADAM = re.compile(r"(?i)(?:fused_?|torch\.optim\.|deepspeed_?cpu_?)?adamw?(?:_torch|_fused|_torch_fused|_hf)?")
"""Names of Adam: any other optimizer has other states."""
_SHOWN = 16
_BOOLEAN = ("true", "false")
_KEY = re.compile(r"[a-z][a-z0-9_.]*")
"""Key of `key=value`, as programs take it that are started with a file of keys."""


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
    """Unknown options that are degrees of a parallel strategy, and more than 1."""
    changes: Mapping[str, str] = field(default_factory=dict)
    """Unknown options that change what is trained, stored, recomputed or split, with their values."""
    factory: bool = False
    """Whether they are of a program of LLaMA-Factory."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Where arguments and the rest of the job are written."""
    spelled: Mapping[str, str] = field(default_factory=dict)
    """What the program itself calls those of the batch, with its dashes."""
    questions: tuple[Problem, ...] = ()
    """What depends on something that the script does not say."""

    @property
    def attention(self) -> str | None:
        """Kernel of attention where an option says that scores are written out; None otherwise."""
        return "materialised" if any(self.job.get(name) == "eager" for name in ATTENTION) else None

    @property
    def model(self) -> str | None:
        """The model's name."""
        return next((str(self.job[name]) for name in (*MODELS, *OWN_MODELS) if self.job.get(name)), None)

    def problems(self) -> Iterator[Problem]:
        """Options of the program itself that split the job in a way that is not read."""
        for name, value in self.split.items():
            why = f"it splits the job in {value}, and what the program does with it is not known"
            fix = "leave it out to check the rest, or price the plan that it makes: check MODEL --plan PLAN"
            yield Problem(what=f"{name} is not read", why=why, fix=fix, field=name)
        for name, said in self.changes.items():
            why = "it is of the program itself, and may change what is trained, stored or recomputed"
            fix = "leave it out to check the rest, or price the plan that it makes: check MODEL --plan PLAN"
            yield Problem(what=f"{name} {said[:40]}".strip() + " is not read", why=why, fix=fix, field=name)

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
        if not on & {"use_peft", "use_lora"} and not self.stored_in_bits:
            return None
        targets = self.job.get("lora_target_modules") or "q_proj,v_proj"
        parts = [f"r={self.job.get('lora_r', 16)}"]
        parts += [f"targets={targets}"] if targets not in ("all-linear", "all") else []
        parts += ["base=nf4"] if "load_in_4bit" in on else ["base=int8"] if "load_in_8bit" in on else []
        dropout, saved = self.job.get("lora_dropout"), self.job.get("modules_to_save")
        parts += [f"dropout={dropout}"] if dropout not in (None, 0, "0.0") else []
        parts += [f"train={saved}"] if saved else []
        return ",".join([*parts, *(["dora"] if "use_dora" in on else [])])

    @property
    def stored_in_bits(self) -> bool:
        """Whether weights are stored in few bits, which are trained through adapters alone."""
        stored = any(self.job.get(name) in (True, 1, "") for name in ("load_in_4bit", "load_in_8bit"))
        return stored and self.job.get("use_peft") is not False and self.job.get("use_lora") is not False

    def said(self, place: str) -> Iterator[Said]:
        """Options of the job with where they stand.

        Args:
            place: the place of the command.
        """
        for name, value in self.job.items():
            shown = "given" if value is True else str(value)
            yield Said(option=name, value=shown, place=self.places.get(name, place))

    def notes(self) -> Iterator[str]:
        """What was taken for granted, and what was not read."""
        if self.lora is not None and not self.job.get("lora_target_modules"):
            yield "no adapter targets are named: query and value projections are taken, as in PEFT"
        if self.factory:
            yield "taken as a program of LLaMA-Factory: it recomputes layers, and trains adapters of rank 8, by default"
        rest = [flag for flag in self.rest if flag.removeprefix("--") not in FILES]
        if rest:
            more = f" and {len(rest) - _SHOWN} more" if len(rest) > _SHOWN else ""
            yield f"options of the program itself, not read: {', '.join(rest[:_SHOWN])}{more}"


def read_trainer_options(launch: Launch) -> TrainerOptions:
    """Options of a program that a script starts.

    Args:
        launch: the program with its words, as bash means them.
    """
    found = _Collected(makes_engine=not names_engine(launch))
    for flag, attached, held, place in _options(launch.words):
        found.take(flag, attached, held, place)
    found.name_model()
    values = found.values
    factory = _of_factory(found)
    if not values.get("lora_r", 1):  # a rank of 0 is how some programs say that there are none
        del values["lora_r"]
    elif "lora_r" in values and {*_OF_CHAT} & found.own.keys():
        values |= _of_chat(found.own)
    elif _FOR_ADAPTERS.search(launch.program.rpartition("/")[2]) and "use_peft" not in values:
        values.setdefault("use_lora", True)
    batch = _own_batch(found)
    return TrainerOptions(
        arguments={name: value for name, value in values.items() if name in ARGUMENTS},
        job={name: value for name, value in values.items() if name not in ARGUMENTS},
        rest=tuple(found.rest),
        split=found.split,
        changes=found.changes,
        places=found.places,
        spelled=found.spelled,
        factory=factory,
        questions=(
            *questions_for(found.opened.values()),
            *batch_asked(batch, values, found.spelled),
            *_adapters_asked(values, found.own),
        ),
    )


_KNOWN = frozenset((*ARGUMENTS, *MODELS, *LENGTHS, *ADAPTERS, *ATTENTION, *PIECES))


@dataclass(frozen=True, slots=True)
class _Named:
    """A model as an option of the program itself names it."""

    flag: str
    texts: list[str]
    words: Sequence[Word]
    unknown: Unknown | None


@dataclass(slots=True, kw_only=True)
class _Collected:
    """Options as they are met: the last of a name stands."""

    makes_engine: bool
    """No file says the engine."""
    values: dict[str, object] = field(default_factory=dict)
    rest: list[str] = field(default_factory=list)
    split: dict[str, int] = field(default_factory=dict)
    changes: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    spelled: dict[str, str] = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)
    """Options of DeepSpeed-Chat that say where adapters are."""
    opened: dict[str, Open] = field(default_factory=dict)
    """What is not known, by name."""
    named: dict[str, _Named] = field(default_factory=dict)
    """Models by options of the program itself."""

    def take(self, flag: str, attached: str | None, held: Sequence[Word], place: ScriptLine | None) -> None:
        """Keep one option with its values.

        Args:
            flag: the flag as it is written.
            attached: its value behind `=`.
            held: the words that hold its values, and those of which nobody knows whether they are options.
            place: the place where it is written.
        """
        name = _name(flag)
        maybe = [one.unknown for one in held if one.unknown is not None and one.unknown.flags]
        unknown = next((one.unknown for one in held if one.unknown is not None and not one.unknown.flags), None)
        own = [one for one in held if one.unknown is None or not one.unknown.flags]
        texts = [one.text for one in own] if attached is None else [attached]
        if name in BITS and texts[:1] and texts[0] in ("4", "8"):
            name, texts = f"load_in_{texts[0]}bit", ["true"]
        if name == "lora" and [text.lower() for text in texts] in ([], ["true"], ["false"]):
            name = "use_lora"
        if name in KINDS and unknown is None and texts[:1] and texts[0].lower() in ADAPTED:
            self.values |= ADAPTED[texts[0].lower()]
            return
        if (name in _KNOWN or name in OWN_MODELS) and place is not None and place.line:
            self.places[name] = str(place)
            if name in BATCH:
                self.spelled[name] = flag
        if name in OWN_MODELS and flag.startswith("--"):
            self.named[name] = _Named(flag, texts, own, unknown)
        elif name not in _KNOWN:
            self._other(flag, name, texts, unknown)
        else:
            self._known(flag, name, texts, unknown, own)
        for one in maybe:
            for other in sorted(one.flags or ()):
                if (called := _name(other)) in _KNOWN or called in FILES or _changes(other, called):
                    self.opened[called] = Open(what=other, unknown=one, place=None, field=other)

    def name_model(self) -> None:
        """Takes the model that the program's own options name, where no option of the trainer does."""
        by_trainer = any(name in self.values or name in self.opened for name in MODELS)
        if by_trainer or len({str(one.texts) for one in self.named.values()}) != 1:
            self.rest += [one.flag for one in self.named.values()]
            return
        for name, one in self.named.items():
            self._known(one.flag, name, one.texts, one.unknown, one.words)

    def _known(self, flag: str, name: str, texts: list[str], unknown: Unknown | None, own: Sequence[Word]) -> None:
        self.opened.pop(name, None)
        if unknown is not None and name in (*MODELS, *OWN_MODELS) and (last := own[0].last_part):
            self.values[name] = last
        elif unknown is not None:
            self.opened[name] = Open(what=flag, unknown=unknown, place=None, field=flag)
        else:
            self.values[name] = _value(",".join(texts) if name in LISTS else (texts or ["true"])[0])

    def _other(self, flag: str, name: str, texts: list[str], unknown: Unknown | None) -> None:
        """An option of the program itself."""
        said = " ".join(texts)
        self.rest.append(flag)
        if name in (*_OF_CHAT, *_OF_FACTORY):
            self.own[name] = said
            return
        degree, changed = is_degree(name), _changes(flag, name)
        if unknown is not None:
            if degree or changed or name in _MADE:
                self.opened[name] = Open(what=flag, unknown=unknown, place=None, field=flag)
        elif degree and said.isdecimal():
            self.split |= {flag: int(said)} if int(said) > 1 else {}
        elif name in OPTIMIZERS:
            self.changes |= {} if not said or _ADAM.fullmatch(said) else {flag: said}
        elif changed and not (self.makes_engine and name in _MADE) and not (texts and leaves_alone(name, said)):
            self.changes[flag] = said


def _name(flag: str) -> str:
    """What an option is called here, `_` for `-`."""
    name = flag.removeprefix("--").replace("-", "_")
    return CALLED.get(name, name)


def _changes(flag: str, name: str) -> bool:
    """Whether an option of a program may change what is trained, stored, recomputed or split."""
    return changes_plan(name) and flag.removeprefix("--") not in FILES


_OF_CHAT = ("lora_module_name", "only_optimize_lora")
_OF_FACTORY = ("stage", "template", "dataset_dir", "disable_gradient_checkpointing")


def _of_factory(found: _Collected) -> bool:
    """Whether options are those of LLaMA-Factory's `src/train.py`, whose own defaults are then filled in.

    Source: hparams/model_args.py and finetuning_args.py of llamafactory 0.9.5 (2026-11), and its earlier
    `train_bash.py`: layers are recomputed, adapters trained.
    """
    own, values = found.own, found.values
    if own.get("stage") not in ("sft", "pt") or not ({"template", "dataset_dir"} & own.keys() or "use_lora" in values):
        return False
    off = own.get("disable_gradient_checkpointing", "false").lower() in ("", "true", "1")
    values.setdefault("gradient_checkpointing", not off)
    if values.setdefault("use_lora", True) is True:
        values.setdefault("lora_r", 8)
        values.setdefault("lora_target_modules", "all")
    return True


def _of_chat(own: Mapping[str, str]) -> dict[str, object]:
    """Adapters of DeepSpeed-Chat: on every product of the layers, whose weights it freezes, and nothing else.

    Source: dschat/utils/module/lora.py (DeepSpeedExamples, 2025).
    """
    # The name is a part of those of the modules that get them: "layers." is of all layers' products.
    layers = re.fullmatch(r"(?:[\w.]*\.)?(?:layers|layer|h|blocks)\.?", own.get("lora_module_name", "layers."))
    found: dict[str, object] = {"use_lora": True}
    if layers is not None:
        found["lora_target_modules"] = "all-linear"
    if "only_optimize_lora" not in own:
        found["modules_to_save"] = "embedding,head,norms"
    return found


def names_engine(launch: Launch) -> bool:
    """Whether a file of DeepSpeed is named, beside which a program makes none."""
    words = [one.text for one in launch.words]
    for one, following in pairwise([*words, "-"]):
        flag, equals, value = one.partition("=")
        held = value if equals else following
        if flag in ("--deepspeed", "--deepspeed_config") and not held.startswith("-") and held.lower() not in _BOOLEAN:
            return True
    return False


def _options(words: Sequence[Word]) -> Iterator[tuple[str, str | None, Sequence[Word], ScriptLine | None]]:
    """Options and `key=value` of a command: name, value behind `=`, words that hold values, and the place."""
    for at, word in enumerate(words):
        flag, equals, attached = word.text.partition("=")
        if not flag.startswith("--") and not (equals and _KEY.fullmatch(flag)):
            continue
        end = next((i for i in range(at + 1, len(words)) if words[i].text.startswith("--")), len(words))
        yield flag, attached if equals else None, [word] if equals else words[at + 1 : end], word.place


def _adapters_asked(values: Mapping[str, object], chat: Mapping[str, str]) -> Iterator[Problem]:
    """Asks whether adapters are trained, and what of them no option says.

    Args:
        values: what is known, by name.
        chat: options of the program itself that say where adapters are.
    """
    ranked = next((name for name in ("lora_r", "lora_target_modules") if name in values), None)
    stored = any(values.get(name) in (True, 1, "") for name in ("load_in_4bit", "load_in_8bit"))
    if ranked is not None and not stored and not any(name in values for name in ("use_peft", "use_lora", "use_dora")):
        why = f"--{ranked} is given, and some programs need no other word"
        fix = "give --set use_peft=true, or --set use_peft=false where all of the model is trained"
        yield Problem(what="whether adapters are trained is not known", why=why, fix=fix, field=f"--{ranked}")
    left = [name for name in ("lora_r", "lora_target_modules") if name not in values]
    own = values.get("use_lora") in (True, 1, "") or (stored and values.get("use_lora") is not False)
    if left and own and "use_peft" not in values:
        what = f"{' and '.join(left)} of the adapters {'are' if len(left) > 1 else 'is'} not known"
        bits = "weights in 4 or 8 bits are trained through adapters, which is"
        given = next((name for name in _OF_CHAT if name in chat), "use_lora" if "use_lora" in values else "")
        said = f"--{given} is" if given else bits
        why = f"{said} an option of the program itself, which has a default of its own"
        shown = {"lora_r": "lora_r=16", "lora_target_modules": "lora_target_modules=q_proj,v_proj"}
        fix = f"give {' '.join(f'--set {shown[name]}' for name in left)}, as the program has it"
        yield Problem(what=what, why=why, fix=fix, field=f"--{left[0]}")


def _own_batch(found: _Collected) -> dict[str, str]:
    """Batches by options of the program itself, which the trainer's own two say instead where both are known."""
    own = {flag: said for flag, said in found.changes.items() if _name(flag) in OWN_BATCH}
    found.changes = {flag: said for flag, said in found.changes.items() if flag not in own}
    return own


def _value(text: str) -> object:
    """A number, a switch or a word."""
    return text.lower() == "true" if text.lower() in _BOOLEAN else number_or_word(text)
