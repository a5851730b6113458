"""Which of the programs a script starts trains a model with Megatron-LM's options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from meshwright.errors import Problem
from meshwright.formats.files import path_end
from meshwright.formats.megatron.earlier import EARLIER
from meshwright.formats.megatron.options import known_options
from meshwright.formats.shell import Launch, Script, ScriptLine, Word, job_at, launches, processes, without_program
from meshwright.formats.shell.asking import Open, questions_for
from meshwright.formats.shell.values import known_text, unknown_of
from meshwright.units import whole_number

_OTHER_MODELS = {
    "bert": "an encoder that fills in masked words",
    "t5": "an encoder and a decoder",
    "ict": "a retriever",
    "retro": "a decoder with a retriever",
    "realm": "a retriever",
    "vision": "an image model",
    "vit": "an image model",
    "vlm": "a decoder with an image tower",
    "multimodal": "a decoder with an image tower",
    "mimo": "several encoders and a decoder",
    "rl": "a policy with rollouts",
    "grpo": "a policy with rollouts",
    "rlhf": "a policy with rollouts",
}
"""What entry points other than a decoder's train, by a part of their name."""
_NO_TRAINING = (
    "preprocess",
    "logit_checker",
    "profiler",
    "convert",
    "to_maxtext",
    "to_hf",
    "to_huggingface",
    "inference",
    "generation",
    "generate",
    "serve",
    "server",
    "eval",
    "export",
    "merge",
    "decode",
    "ckpt",
    "checkpoint",
    "to_mg",
    "to_hf",
    "analyze",
    "demo",
    "chatbot",
    "gradio",
    "webui",
    "download",
    "hf2",
    "2hf",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenCommand:
    """The words that say a plan."""

    launcher: tuple[Word, ...] = ()
    words: tuple[Word, ...] = ()
    program: str = ""
    tasks: int | None = None
    """Processes that Slurm starts, each of them the program itself; None where a launcher does, or nobody says it."""
    place: ScriptLine | None = None
    problems: tuple[Problem, ...] = ()
    """Why there is none, or what it is instead."""
    questions: tuple[Problem, ...] = ()
    """What only the user can say."""


def training_launch(script: Script) -> ChosenCommand:
    """The launch that trains; its options where a text has nothing but options."""
    found = [launch for launch in launches(script.commands) if _of_megatron(launch.words)]
    most = max((_score(launch.words) for launch in found), default=0)
    found = [launch for launch in found if _score(launch.words) * 3 >= most]
    if not found:
        roles = (several_models(launch) for launch in launches(script.commands))
        role = next((one for one in roles if one is not None), None)
        return _options_alone(script) if role is None else ChosenCommand(problems=(role,))
    training = [launch for launch in found if trains(launch)]
    if not training:
        return ChosenCommand(program=found[-1].program, problems=(no_training(found[-1]),))
    at = job_at(training, script.job)
    last = training[-1 if isinstance(at, Problem) else at]
    if (role := several_models(last)) is not None:
        return ChosenCommand(program=last.program, problems=(role,))
    if isinstance(at, Problem):
        return ChosenCommand(program=last.program, questions=(at,))
    problems = list(_other_model(last))
    return ChosenCommand(
        launcher=last.launcher,
        words=last.words,
        program=last.program,
        tasks=_tasks(last),
        place=last.place,
        problems=tuple(problems),
    )


def _tasks(launch: Launch) -> int | None:
    """Tasks of the job in which a program is started without a launcher of its own, where there are several."""
    value = launch.environment.get("SLURM_NTASKS") or ()
    text = known_text(value) if unknown_of(value) is None else ""
    others = tuple(word for word in launch.launcher if word.text.rpartition("/")[2] != "srun")
    alone = not replace(launch, launcher=others).distributed and processes(launch.launcher) == (None, None)
    tasks = whole_number(text) if alone else None
    return tasks if tasks is not None and 1 < tasks < 10**7 else None


_OF_TEACHERS = (
    *("--teacher_model", "--teacher-model", "--load-teacher", "--num-layers-teacher", "--hidden-size-teacher"),
    "--export-kd-teacher",
)
_OF_ROLES = ("--actor_model", "--critic_model", "--reward_model", "--ref_model", *_OF_TEACHERS)
"""Options that name a second model."""


def several_models(launch: Launch) -> Problem | None:
    """Why a program that is given several models is none that a plan is read of; None where it has one."""
    named = next((word.text for word in launch.words if word.text.startswith(_OF_ROLES)), None)
    if named is None:
        return None
    role = named.partition("=")[0]
    others = "a student with its teacher" if role.startswith(_OF_TEACHERS) else "a policy with the models that judge it"
    why = f"it trains {others} ({role}): no plan here prices several"
    what = f"{launch.program.rpartition('/')[2]} is started"
    return Problem(what=what, why=why, fix="check a script of SFT or pretraining", field="source")


def _score(words: Sequence[Word]) -> int:
    """How many options of Megatron-LM there are."""
    options = known_options()
    return sum(
        word.text.partition("=")[0] in options or word.text in EARLIER for word in words if word.text[:2] == "--"
    )


_ESSENTIAL = ("-model-parallel-size", "--num-layers", "--hidden-size", "--micro-batch-size", "--global-batch-size")
"""One of these has every training of Megatron-LM."""


def _of_megatron(words: Sequence[Word]) -> bool:
    """Whether options are those of Megatron-LM: some are, and one that its trainings have, or that may be hidden."""
    flags = [word.text.partition("=")[0] for word in words]
    before = ["", *(word.text for word in words)]
    # A variable behind an option is its value; elsewhere it may hold options.
    hidden = any(
        word.unknown is not None and not word.text.startswith("--") and not last.startswith("--")
        for last, word in zip(before, words, strict=False)
    )
    return bool(_score(words)) and (hidden or any(flag.endswith(_ESSENTIAL) for flag in flags if flag[:2] == "--"))


def _stem(program: str) -> str:
    return program.rpartition("/")[2].removesuffix(".py").rpartition(".")[2].lower()


def trains(launch: Launch) -> bool:
    """Whether a program trains a model, by its name."""
    stem = _stem(launch.program)
    return "train" in stem or not any(part in stem for part in _NO_TRAINING)


def no_training(launch: Launch) -> Problem:
    """Why a program is none that a plan is read of: it trains no model."""
    return Problem(
        what=f"{launch.program.rpartition('/')[2]} does not train a model",
        why=f"by its name it converts, profiles, evaluates or serves a model, or reads data ({launch.place})",
        fix="check the script that trains it",
        field="source",
    )


_TASKS_OF_ENCODERS = frozenset(("MNLI", "QQP", "QNLI", "MRPC", "RACE", "COLA", "SST-2", "STS-B", "RTE"))
"""Values of --task of `tasks/main.py` that classify with BERT."""
_TASKS_OF_RETRIEVERS = ("RET-", "RETRIEVER", "ICT-")
"""Beginnings of those that look passages up."""
_ONE_PASS = ("sft", "pt", "pretrain")
"""Values of --stage of MindSpeed-LLM that train one model on one pass over each sequence."""
_OF_ROLLOUTS = ("--rollout-", "--num-rollout", "--n-samples-per-prompt")


def _other_model(launch: Launch) -> Iterator[Problem]:
    """An entry point that trains something else than a decoder."""
    stem = _stem(launch.program)
    folder = launch.program.lower()
    rollout = next((word.text for word in launch.words if word.text.startswith(_OF_ROLLOUTS)), None)
    if rollout is not None:
        yield Problem(
            what=f"{launch.program.rpartition('/')[2]} trains {_OTHER_MODELS['rl']}",
            why=f"its batches come from a second program that generates them ({rollout.partition('=')[0]})",
            fix="check a script of SFT or pretraining",
            field="source",
        )
        return
    stage = next((after.text for before, after in pairwise(launch.words) if before.text == "--stage"), "sft")
    if stem.startswith(("posttrain", "ray_")) and stage not in _ONE_PASS:
        yield Problem(
            what=f"{launch.program.rpartition('/')[2]} trains by {stage}",
            why="it trains on pairs or rewards: a second model, or another head, runs beside the one that is trained",
            fix="check a script of SFT or pretraining",
            field="source",
        )
        return
    task = next((after.text for before, after in pairwise(launch.words) if before.text == "--task"), "")
    if task.upper() in _TASKS_OF_ENCODERS or task.upper().startswith(_TASKS_OF_RETRIEVERS):
        kind = "an encoder" if task.upper() in _TASKS_OF_ENCODERS else "a retriever"
        yield Problem(
            what=f"{launch.program.rpartition('/')[2]} fine-tunes {kind} for {task}",
            why="options are read as those of a decoder: another model's plan would be read wrong",
            fix="check a script that starts pretrain_gpt.py or pretrain_mamba.py",
            field="source",
        )
        return
    if (seen := _of_images(launch)) is not None:
        yield Problem(
            what=f"{launch.program.rpartition('/')[2]} trains {_OTHER_MODELS['multimodal']}",
            why=f"{seen} is of a model that reads images: its decoder's plan alone would be read",
            fix="check a script of a model of text",
            field="source",
        )
        return
    for part, what in _OTHER_MODELS.items():
        if part in stem.replace("-", "_").split("_") or f"/{part}/" in folder:
            yield Problem(
                what=f"{launch.program.rpartition('/')[2]} trains {what}",
                why="options are read as those of a decoder: another model's plan would be read wrong",
                fix="check a script that starts pretrain_gpt.py or pretrain_mamba.py",
                field="source",
            )
            return


def _of_images(launch: Launch) -> str | None:
    """The option that says that a decoder reads images too."""
    for said, after in pairwise([*(word.text for word in launch.words), ""]):
        flag, _, value = said.partition("=")
        if re.match(r"--(?:.+-)?(?:vision|image)-", flag) or (
            (flag.endswith("-tokenizer-type") and "VL" in (value or after))
            or (flag == "--position-embedding-type" and (value or after) == "mrope")
        ):
            return flag
    return None


_PROGRAMS = {
    "swift": "ms-swift",
    "megatron": "ms-swift",
    "xtuner": "XTuner",
    "tune": "torchtune",
    "litgpt": "LitGPT",
    "composer": "Composer",
    "colossalai": "ColossalAI",
    "oumi": "Oumi",
    "primus-cli": "Primus",
    "primus": "Primus",
    "nemo": "NeMo 2",
}
"""Programs that train and whose options are not read, by their command."""


def _of_another(script: Script) -> str:
    """Says which program trains instead, where it is one that is known; else nothing."""
    for command in script.commands:
        for word in command.words[:4]:
            name = word.text.rpartition("/")[2]
            if name in _PROGRAMS:
                return f"it starts {name} of {_PROGRAMS[name]} ({command.place}), whose options are not read"
    return ""


def _of_no_python(script: Script) -> Iterator[str]:
    """Says of programs that take a trainer's options and are no Python file, what is not known of them."""
    for command in script.commands:
        if command.words and any(word.text.startswith("--per_device_train_batch_size") for word in command.words):
            name = command.words[0].text.rpartition("/")[2]
            yield f"it starts {name} ({command.place}), a program of its own whose options are not known"


def _program_asked(script: Script) -> Iterator[Problem]:
    """Asks for what a command starts of which nothing is known, program and options: `$RUN`."""
    opened = [
        Open(what="the program that is started", unknown=command.words[0].unknown, place=command.place, field="source")
        for command in script.commands
        if command.words and command.words[0].unknown is not None and not command.words[0].text
    ]
    yield from questions_for([one for one in opened if not one.unknown.unset][-1:])


def _open_options(started: Sequence[Launch]) -> Iterator[str]:
    """Says of programs that train, those with a launcher if there are any, what nobody can know of their words."""
    training = [launch for launch in started if trains(launch)]
    for launch in [one for one in training if one.distributed] or training:
        around = [after.unknown for before, after in pairwise(launch.launcher) if before.text == "--config_file"]
        around += [word.unknown for word in launch.launcher if word.text == "--config_file="]
        before = ["", *(word.text for word in launch.words)]
        # A single word behind an option is its value, whichever it is; by itself it may name what says the plan.
        opened = [
            word.unknown
            for last, word in zip(before, launch.words, strict=False)
            if word.unknown is not None and not word.text and not (word.unknown.single and last.startswith("--"))
        ]
        unknown = next((one for one in (*around, *opened) if one is not None), None)
        if unknown is not None:
            name = "its launcher" if unknown in around else launch.program.rpartition("/")[2]
            yield f"what {name} is started with is not known: {unknown.why} ({unknown.place})"


_ITS_CONFIGURATION = "check the configuration that it reads, or price its plan: check MODEL --plan PLAN"


def _options_alone(script: Script) -> ChosenCommand:
    """A text of options; else why nothing was found."""
    # Options of another program, such as srun's, stand behind its name.
    alone = [command for command in script.commands if command.words and command.words[0].text.startswith("--")]
    words = [word for command in alone for word in command.words]
    started = launches(script.commands)
    if words and not started and not script.missing:
        return ChosenCommand(words=tuple(words))
    if not started and (asked := tuple(_program_asked(script))):
        return ChosenCommand(questions=asked)
    if started and not _stem(started[-1].program) and (unnamed := started[-1].unnamed) is not None:
        place = started[-1].place
        opened = Open(what="the program that is started", unknown=unnamed, place=place, field="source")
        return ChosenCommand(questions=tuple(questions_for([opened])))
    if started and not any(map(trains, started)):
        return ChosenCommand(problems=(no_training(started[-1]),))
    why, fix = _why_without_options(script, started)
    problem = Problem(what="there are no options", why=why, fix=fix, field="options")
    return ChosenCommand(problems=((not script.missing and script.stopped()) or problem,))


def _why_without_options(script: Script, started: Sequence[Launch]) -> tuple[str, str]:
    """Why a script has no options of Megatron-LM, and what to do."""
    if script.missing and not any(launch.distributed and not launch.unnamed for launch in started):
        path, place = script.missing[0]
        handed = (
            '; where it only runs the program that it is handed, it is: exec "$@"' if path in script.wrappers else ""
        )
        return f"it calls {path_end(path)} at {place}, which is not here", f"put that file beside the script{handed}"
    if other := _of_another(script):
        return other, "check the configuration that it makes, or price its plan: check MODEL --plan PLAN"
    return _why_started(script, started) if started else _why_nothing_started(script)


def _why_nothing_started(script: Script) -> tuple[str, str]:
    if other := next(_of_no_python(script), ""):
        return other, _ITS_CONFIGURATION
    if without := without_program(script.commands):
        unknowns = [word.unknown for word in without[-1].words if word.unknown is not None and not word.text]
        said = f"is not known: {unknowns[0].why}" if unknowns else "is no Python file"
        name = without[-1].words[0].text.rpartition("/")[2]
        return f"what {name} starts {said} ({without[-1].place})", _ITS_CONFIGURATION
    if run := list(dict.fromkeys(one.words[0].text.rpartition("/")[2] for one in script.commands if one.words)):
        return f"it runs {', '.join(run[-3:])}, and starts no Python program", _STARTS
    return "a launch script names them after a .py file", _STARTS


_STARTS = "name the script that starts the training, or the configuration of it"


def _why_started(script: Script, started: Sequence[Launch]) -> tuple[str, str]:
    if torn := next(script.torn_options(), ""):
        return torn, "end the line before with \\"
    if unknown := next(_open_options(started), ""):
        return unknown, "set it with --env NAME=VALUE or --arg, or check the file that it names"
    names = dict.fromkeys(launch.program.rpartition("/")[2] for launch in started)
    shown = ", ".join(list(names)[:3])
    flags = [one.text.partition("=")[0] for launch in started for one in launch.words]
    plain = [f"--{flag[2:].replace('_', '-')}" for flag in flags if flag[:2] == "--" and "_" in flag]
    if sum(any(one in flag for one in _ESSENTIAL) for flag in plain if flag in known_options()) > 1:
        why = f"it starts {shown} of a fork that writes options with _, and Megatron-LM takes none of them"
        return why, "check the arguments that the run prints when it starts: --from args"
    if not any(_stem(launch.program).startswith("pretrain") for launch in started):
        return f"it starts {shown}, whose own options or files say the plan and are not read", _ITS_CONFIGURATION
    return f"it starts {shown} without options of Megatron-LM", "name the script that starts pretrain_gpt.py"
