"""Command lines that cannot be read, as the same kind of error as every other bad input."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from meshwright.errors import InputError, MeshwrightError, Problem, UnsupportedError, nearest

ABSENT_VERBS = {
    "fit": "`meshwright calibrate MEASURED.csv -o calibration.json` fits the model's numbers to measured runs",
    "replan": "`meshwright plan MODEL --gpus G --replan-from PLAN` plans anew for changed devices",
    "train": "`meshwright run` trains here; `meshwright export PLAN --to megatron -o DIR` starts it elsewhere",
}
"""Verbs this version lacks, and what to do instead."""

_OF_COPIES = "the frozen copy adds a forward pass, and its weights unless --lora trains adapters beside them"
_OF_PAIRS = f"plan its training step: a pair is two sequences of --gbs; {_OF_COPIES}"
_OF_SAMPLES = f"plan its training step: a sample is one sequence of --gbs; {_OF_COPIES}"
_OF_PAIRS_ALONE = "plan its training step: a pair is two sequences of --gbs, and there is no frozen copy"
_OF_STAGES = f"leave it out for sft and pt; of dpo, {_OF_PAIRS}"
_OF_RL = "plan its training step alone: generation, and the models that score what is generated, are not modelled"
_OF_VALUES = "leave it out: it changes what is learnt, and neither time nor memory"
ABSENT_OPTIONS = {
    "--hub": "download the model's config.json and pass its path",
    "--dpo": _OF_PAIRS,
    "--kto": _OF_SAMPLES,
    **dict.fromkeys(("--orpo", "--simpo", "--cpo"), _OF_PAIRS_ALONE),
    **dict.fromkeys(("--stage", "--rlhf-type", "--rlhf_type"), _OF_STAGES),
    **dict.fromkeys(
        ("--lr", "--learning-rate", "--lora-alpha", "--weight-decay", "--warmup-steps", "--seed"), _OF_VALUES
    ),
    **dict.fromkeys(("--rl", "--rlhf", "--ppo", "--grpo", "--gspo", "--reinforce"), _OF_RL),
}
"""Options this version lacks, and what to do instead."""

OPTIONAL_VALUES = {"--ray": "auto"}
"""Options that may stand without a value, and the value that means."""


def optional_values(words: Sequence[str]) -> list[str]:
    """The command line with the values that may be left out written down."""
    found = []
    for word, after in zip(words, [*words[1:], ""][: len(words)], strict=True):
        alone = word in OPTIONAL_VALUES and (not after or after.startswith("-"))
        found.append(f"{word}={OPTIONAL_VALUES[word]}" if alone else word)
    return found


def refuse_missing_values(words: Sequence[str], parameters: Sequence[Any], path: str) -> None:
    """Let nobody take the option that follows for the value of one before it.

    Args:
        words: the words behind a verb.
        parameters: the parameters of the verb.
        path: the verb.

    Raises:
        InputError: options stand before another one, or last, without the value that they take.
    """
    known = {*_options(parameters)}
    valued = {name: one for one in parameters if _takes_value(one) for name in one.opts}
    typed = words[: words.index("--")] if "--" in words else words
    problems = [
        _missing_value(word, following, valued[word], path)
        for word, following in zip_longest(typed, typed[1:])
        if word in valued and (following is None or following in known)
    ]
    if problems:
        raise InputError(problems, code="MW206")


def _takes_value(parameter: Any) -> bool:
    return parameter.param_type_name == "option" and not parameter.is_flag and not parameter.count


def _missing_value(option: str, following: str | None, parameter: Any, path: str) -> Problem:
    why = f"{following} behind it is an option of its own" if following else "nothing follows it"
    fix = f"{option} {parameter.metavar or 'VALUE'}; `{path} --help` says what that is"
    return Problem(what=f"{option} has no value", why=why, fix=fix, field=option)


def usage_error(error: Any, words: Sequence[str]) -> MeshwrightError:
    """The parser's complaint, with all unknown options at once and the nearest names that exist.

    Args:
        error: what the parser raised.
        words: the command line.

    Returns:
        An input error, or an unsupported one where all that is wrong are things this version lacks.
    """
    context = error.ctx
    path = context.command_path if context else "meshwright"
    help_hint = f"`{path} --help` lists what there is"
    if unknown := re.match(r"No such command '(.*?)'", error.message or ""):
        return _unknown_verb(unknown[1], path, list(getattr(context.command, "commands", {})), help_hint)
    kind = type(error).__name__
    if kind == "NoSuchOption":
        return _unknown_options(error, words, path, help_hint)
    if kind == "MissingParameter":
        name = error.param.metavar or error.param.opts[0]
        fix = error.param.help or help_hint
        return InputError(what=f"{name} is missing", why=f"{path} needs it", fix=fix, field=name, code="MW206")
    said = error.format_message().rstrip(".")
    if extra := re.match(r"Got unexpected extra argument(?:s|\(s\))? \((.*)\)$", said):
        return _extra_arguments(extra[1], context.command.params, path, help_hint)
    return InputError(what=said, fix=help_hint, code="MW206")


def _extra_arguments(extra: str, parameters: Sequence[Any], path: str, help_hint: str) -> MeshwrightError:
    """Words that no argument is left for: often devices, or a model beside a plan, that belong behind an option."""
    taken = [one.metavar for one in parameters if one.param_type_name == "argument"]
    known, fix = _options(parameters), help_hint
    if "--gpus" in known and re.match(r"[0-9]+x\S", extra):
        fix = f"did you mean --gpus {extra[:80]}?"
    elif "#" in extra or ".json" in extra:
        fix = "plans are compared two at a time here, up to four at once in `meshwright web`"
    elif "--model" in known:
        fix = f"a model goes behind --model: `{' '.join([path, *taken])} --model MODEL`"
    why = f"{path} takes {' and '.join(taken)}" if taken else f"{path} takes options alone"
    return InputError(what=f"{path} has no place for {extra[:80]}", why=why, fix=fix, code="MW206")


def _unknown_verb(name: str, path: str, verbs: list[str], help_hint: str) -> MeshwrightError:
    if path == "meshwright" and name in ABSENT_VERBS:
        what, why = f"this version has no verb {name!r}", f"it has {', '.join(verbs)}"
        return UnsupportedError(what=what, why=why, fix=ABSENT_VERBS[name], field="verb", code="MW408")
    close = nearest(name, verbs)
    fix = f"did you mean {' or '.join(f'`{path} {verb}`' for verb in close)}?" if close else help_hint
    if name == "help":
        fix = f"`{path} --help` lists the verbs, `{path} VERB --help` describes one"
    what, why = f"unknown verb {name[:80]!r}", f"{path} has {', '.join(verbs)}"
    return InputError(what=what, why=why, fix=fix, field="verb", code="MW206")


def _unknown_options(error: Any, words: Sequence[str], path: str, help_hint: str) -> MeshwrightError:
    parameters = error.ctx.command.params
    known = _options(parameters)
    names = [word.partition("=")[0] for word in words if re.match(r"--[^=]", word)]
    wrong = [name for name in dict.fromkeys(names) if name not in known] or [error.option_name]
    arguments = [parameter.metavar for parameter in parameters if parameter.param_type_name == "argument"]
    problems = [_unknown_option(name, path, known, help_hint, arguments) for name in wrong]
    absent = all(name in ABSENT_OPTIONS for name in wrong)
    return UnsupportedError(problems, code="MW408") if absent else InputError(problems, code="MW206")


def _options(parameters: Sequence[Any]) -> list[str]:
    """All options of a verb, short ones and their opposites too."""
    names = [name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)]
    return [name for name in (*names, "--help") if name.startswith("-")]


def _unknown_option(name: str, path: str, known: list[str], help_hint: str, arguments: list[str]) -> Problem:
    if name in ABSENT_OPTIONS:
        why = "nothing of it would be used"
        return Problem(what=f"this version has no option {name}", why=why, fix=ABSENT_OPTIONS[name], field=name)
    from meshwright.fields.other_names import meant_options, names_the_model  # few words are wrong

    meant = meant_options(name, known)
    close = meant or nearest(name, [option for option in known if option.startswith("--")])
    fix = f"did you mean {' or '.join(close)}?" if close else help_hint
    if "MODEL" in arguments and names_the_model(name):
        fix = f"the model needs no option: `{path} MODEL`"
    elif name == "--plan" and "PLAN" in arguments:
        fix = f"the plan needs no option, the model does: `{path} PLAN --model MODEL`"
    elif name in ("--export", "--launch") and "--output" in known:
        fix = "save plans with -o plans.json, then `meshwright export plans.json#1 --to TARGET -o launch`"
    elif not meant and (stated := _stated_in_plans(name, known)):
        fix = stated
    return Problem(what=f"unknown option {name[:80]}", why=f"{path} has no such option", fix=fix, field=name[:80])


def _stated_in_plans(name: str, known: list[str]) -> str:
    """How a verb is told an axis of plans: by its option `--pin`, or in a plan; nothing where it is told neither."""
    from meshwright.planning.axes.words import axis_called

    axis = axis_called(name)
    if axis is None or not {"--pin", "--plan"} & {*known}:
        return ""
    return f"did you mean --pin {axis}=...?" if "--pin" in known else f"{axis} is part of what --plan states"
