"""Overrides of Megatron-Bridge as a plan: a file of them, or a bash script that starts a recipe with them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from meshwright.errors import Problem
from meshwright.formats.key_text import leaves
from meshwright.formats.launch_file import LaunchFile, Said
from meshwright.formats.megatron.read import read_flags
from meshwright.formats.shell import Launch, Script, ScriptLine, Word, job_at, launches, processes, word
from meshwright.formats.shell.asking import Open, questions_for
from meshwright.targets.bridge import lora, options, recipe
from meshwright.targets.bridge.as_options import as_made, flags_of, of_the_run, without_effect
from meshwright.targets.bridge.overrides import KEY_OF, override_options
from meshwright.targets.key_texts import table_of
from meshwright.targets.overrides import parted

NEEDED = {
    "--tensor-model-parallel-size": "model.tensor_model_parallel_size",
    "--pipeline-model-parallel-size": "model.pipeline_model_parallel_size",
    "--context-parallel-size": "model.context_parallel_size",
    "--micro-batch-size": "train.micro_batch_size",
    "--global-batch-size": "train.global_batch_size",
    "--seq-length": "model.seq_length",
}
"""What a recipe sets, each its own way, where the overrides do not."""


def read_bridge_text(name: str, text: str, devices: int | None) -> LaunchFile:
    """A file of overrides, one a line or a word, over the recipe that is exported with it.

    Args:
        name: the name of the file.
        text: its overrides; a comment `# devices: N` says the devices where nobody else does.
        devices: the number of devices of the job.
    """
    said = next((line for line in text.splitlines() if line.startswith("# devices: ")), "")
    world = devices or (int(said.split()[-1]) if said.split()[-1:] and said.split()[-1].isdigit() else None)
    words = [
        word(one, ScriptLine(name, number) if name else None)
        for number, line in enumerate(text.splitlines(), 1)
        if not line.lstrip().startswith("#")
        for one in line.split()
    ]
    read = _read(as_made(words), world)
    adapted = lora.said({key: value.text for key, value in map(parted, words) if key})
    return read if adapted is None else replace(read, workload=read.workload | {"lora": adapted})


def read_bridge_script(script: Script, devices: int | None) -> LaunchFile:
    """A bash script that starts a recipe with overrides; what the recipe alone says is asked for.

    Args:
        script: the script as bash means it.
        devices: the number of devices of the job; by default those that its launcher starts.
    """
    found = options.started(launches(script.commands), override_options())
    if not found and (hidden := tuple(_hidden_overrides(script))):
        return LaunchFile(row=None, layout=None, questions=hidden)
    if not found:
        why = "no program in it is started with KEY=VALUE overrides such as model.tensor_model_parallel_size=2"
        problem = Problem(what="there are no overrides", why=why, fix="name the script that starts a recipe with them")
        return LaunchFile(row=None, layout=None, problems=(script.stopped() or problem,))
    at = job_at(found, script.job)
    if isinstance(at, Problem):
        return LaunchFile(row=None, layout=None, questions=(at,))
    launch = found[at]
    started, _ = processes(launch.launcher)
    words = options.as_overrides(launch)
    names = " ".join(one.text for one in launch.words)
    usual = options.recipe_defaults(names, [key for key, _ in map(parted, words) if key])
    words = as_made([*words, *usual])
    read = _read(words, devices or options.devices_of(launch) or started)
    adapted, asked = options.lora_asked(launch, {key: value.text for key, value in map(parted, words) if key})
    read = replace(
        read, model=options.model_named(launch), workload=read.workload | ({"lora": adapted} if adapted else {})
    )
    read = replace(read, problems=(*read.problems, *_of_towers(launch)))
    questions = (*_unknown_recipe(launch), *_left_to(_recipe(launch), read), *asked)
    if questions and not read.questions:
        open_ = [problem for problem in read.problems if problem.what not in _UNSET]
        return replace(read, row=None, layout=None, workload={}, questions=questions, problems=tuple(open_))
    notes = [f"settings without an override are taken as not set by {_recipe(launch)}"]
    if usual:
        notes.insert(0, f"taken as recipes have it: {', '.join(one.text for one in usual)}")
    return replace(read, notes=(*read.notes, *notes))


_SEES = re.compile(r"(?:^|_)(?:vlm?|llava|omni)(?:_|$)|audio(?:_|$)")
"""What recipes and forward steps of models that see or hear have in their names. Source: scripts/training/
run_recipe.py and megatron/bridge/recipes of Megatron-Bridge (2026-08)."""


def _of_towers(launch: Launch) -> Iterator[Problem]:
    """Why a recipe is of no plain decoder, by its name or the forward step that it is started with; said once."""
    for option, value in pairwise(one.text for one in launch.words):
        if option in ("--step_func", *_NAMED_BY) and _SEES.search(value):
            why = "images or sound go through a tower before the text, which a plan of its decoder leaves out"
            what, fix = f"{option} is {value[:60]}", "check a recipe of a text model"
            yield Problem(what=what, why=why, fix=fix, field=option)
            return


_NAMED_BY = ("--recipe", "-mr", "--model_recipe_name")
"""Options that name a recipe."""


def _unknown_recipe(launch: Launch) -> tuple[Problem, ...]:
    """Asks for what the name of a recipe depends on."""
    named = [value for option, value in pairwise(launch.words) if option.text in _NAMED_BY]
    hidden = [
        Open(what="which recipe is started", unknown=one.unknown, place=one.place, field="source")
        for one in named
        if one.unknown is not None
    ]
    return tuple(questions_for(hidden[:1]))


def _hidden_overrides(script: Script) -> Iterator[Problem]:
    """Asks for words of a recipe's launcher that nobody knows and that may be overrides."""
    hidden = [
        Open(what="which overrides are here", unknown=one.unknown, place=one.place, field="source")
        for launch in launches(script.commands)
        if launch.program.endswith(options.PROGRAMS)
        for one in launch.words
        if one.unknown is not None and not one.text
    ]
    yield from questions_for(hidden[-1:])


def read_bridge_yaml(name: str, text: str, over: Mapping[str, object], devices: int | None) -> LaunchFile:
    """A YAML file of overrides, one table for each part of a recipe's configuration.

    Args:
        name: the name of the file.
        text: its YAML.
        over: values by key that stand over its own.
        devices: the number of devices of the job.

    Raises:
        InputError: the text is no YAML.
    """
    lines = [line.strip() for line in text.splitlines()]
    words = []
    for key, value in {**dict(leaves(table_of(text, "YAML", "configuration of Megatron-Bridge"))), **over}.items():
        last = f"{key.rpartition('.')[2]}:"
        at = next((number for number, line in enumerate(lines, 1) if line.startswith(last)), 0)
        shown = f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)
        words.append(word(f"{_RENAMED.get(key, key)}={shown}", ScriptLine(name, at)))
    usual = options.recipe_defaults(name, [key for key, _ in map(parted, words) if key])
    read = _read(as_made([*words, *usual]), devices)
    if "peft" in {key.partition(".")[0] for key, _ in map(parted, words)}:
        problem = Problem(what="peft is given", why=_TUNED, fix="check the script that starts the recipe", field="peft")
        read = replace(read, problems=(*read.problems, problem))
    questions = _left_to("the recipe that it is laid over", read)
    if questions and not read.questions:
        open_ = [problem for problem in read.problems if problem.what not in _UNSET]
        return replace(read, row=None, layout=None, workload={}, questions=questions, problems=tuple(open_))
    notes = [f"taken as recipes have it: {', '.join(one.text for one in usual)}"] if usual else []
    notes.append("what the file does not say besides is taken as not set by its recipe")
    return replace(read, notes=(*read.notes, *notes))


def read_bridge_recipe(name: str, text: str, over: Mapping[str, object], devices: int | None) -> LaunchFile:
    """A Python file of recipes: the fields that one of its functions sets.

    Args:
        name: the name of the file.
        text: its Python.
        over: values by key that stand over its own; `recipe` names the function.
        devices: the number of devices of the job.

    Raises:
        InputError: the text is no Python.
    """
    given = dict(over)
    found, asked = recipe.recipe_named(name, text, str(given.pop("recipe", "")))
    if found is None:
        assert asked is not None
        return LaunchFile(row=None, layout=None, questions=(asked,))
    said = {key: (shown, ScriptLine(name, line)) for key, shown, line in recipe.words_of(found)}
    if "model.seq_length" in said:
        said.pop("dataset.seq_length", None)  # a model is given sequences of its own length
    said |= {key: (str(value), ScriptLine(name, 0)) for key, value in given.items()}
    adapters = {key: shown for key, (shown, _) in said.items() if key.startswith("peft.")}
    words = [
        word(f"{_RENAMED.get(key, key)}={shown}", place)
        for key, (shown, place) in said.items()
        if not key.startswith("peft.") and not without_effect(key, shown)
    ]
    read = _read(as_made(words), devices)
    adapted = options.lora_of_keys(adapters) if adapters else None
    questions = () if found.problems else _left_to("the function that it starts from", read)
    workload = read.workload | ({"lora": adapted} if adapted else {})
    named = {"name": found.model} if found.model else {}
    if questions and not read.questions:
        return replace(read, row=None, layout=None, workload={}, model=named, questions=questions)
    return replace(read, model=named, workload=workload, problems=(*read.problems, *found.problems))


_RENAMED = {"dataset.seq_length": "dataset.sequence_length"}
_TUNED = "which adapters the recipe trains follows from its name, which the file does not say"


_UNSET = frozenset(f"{key} is not given" for key in NEEDED.values())
"""What Megatron-LM misses where a recipe sets it."""


def _left_to(recipe: str, read: LaunchFile) -> tuple[Problem, ...]:
    """Asks for what a recipe sets, each its own way, and no override says; one question for all."""
    said = {one.option for one in read.said}
    if "dataset.sequence_length" in said:
        said.add("model.seq_length")
    missing = [key for key in (*NEEDED.values(), "mixed_precision") if key not in said]
    if not missing:
        return ()
    what = f"{missing[0]} is not given"
    if len(missing) > 1:
        what = f"{', '.join(missing[:-1])} and {missing[-1]} are not given"
    why = f"{recipe} sets {'them' if len(missing) > 1 else 'it'}, which is not read"
    values = dict.fromkeys(missing, "N") | {"mixed_precision": "NAME"}
    fix = f"give {' '.join(f'--set {key}={values[key]}' for key in missing)}"
    return (Problem(what=what, why=why, fix=fix, field=missing[0]),)


def _recipe(launch: Launch) -> str:
    texts = [one.text for one in launch.words]
    named = next((texts[at + 1] for at, text in enumerate(texts[:-1]) if text == "--recipe"), None)
    return f"the recipe {named}" if named else f"the recipe of {launch.program.rpartition('/')[2]}"


def _read(words: Iterable[Word], devices: int | None) -> LaunchFile:
    words = list(words)
    texts = {key: value.text for key, value in map(parted, words) if key}
    flags, problems = flags_of(words)
    if not flags:
        return LaunchFile(row=None, layout=None, problems=tuple(problems))
    read = read_flags(flags, devices=devices)
    # The recipe has the model from its own config, so that what the overrides leave out is not Megatron-LM's default.
    return replace(
        read,
        model={},
        problems=(*problems, *_in_keys(read.problems)),
        questions=tuple(_in_keys(read.questions)),
        said=tuple(_said(read.said, texts)),
        unpriced=(*_said(read.unpriced, texts), *_of_the_run(words)),
        notes=tuple(_keyed(note) for note in read.notes),
    )


def _of_the_run(words: Iterable[Word]) -> Iterator[Said]:
    for key, value in map(parted, words):
        harmless = key not in override_options() and without_effect(key, value.text)
        if key and (harmless or of_the_run(key)):
            yield Said(option=key, value=value.text, place=str(value.place) if value.place else "")


_FLAG = re.compile(r"--[a-z0-9-]+")


def _keyed(text: str) -> str:
    """A sentence with keys in the place of Megatron-LM's options."""
    return _FLAG.sub(lambda found: KEY_OF.get(found[0], found[0]), text)


def _in_keys(problems: Iterable[Problem]) -> Iterator[Problem]:
    for one in problems:
        yield Problem(what=_keyed(one.what), why=_keyed(one.why), fix=_keyed(one.fix), field=_keyed(one.field))


def _said(found: Iterable[Said], texts: Mapping[str, str]) -> Iterator[Said]:
    """Values by their keys; those that one key says together once."""
    by_key = {_keyed(one.option): one for one in reversed(list(found))}
    for key, one in reversed(by_key.items()):
        yield replace(one, option=key, value=texts.get(key, one.value).strip("'\""))
