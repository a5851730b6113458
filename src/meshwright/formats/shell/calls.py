"""Commands that run scripts: `bash -c`, `bash FILE`, `sbatch FILE`, `ssh HOST ...`; and `#SBATCH` lines."""

from __future__ import annotations

import re
from contextlib import suppress

from meshwright.formats.shell.handing import with_handed
from meshwright.formats.shell.interpreter import Interpreter
from meshwright.formats.shell.leaving import Left
from meshwright.formats.shell.source import Source
from meshwright.formats.shell.state import Shell
from meshwright.formats.shell.values import (
    Fragment,
    ScriptLine,
    Unknown,
    Value,
    Variable,
    behind_equals,
    is_whole,
    known_text,
    literal,
)

SHELLS = ("bash", "sh", "zsh", "dash", "ksh")
_SBATCH = re.compile(r"^#SBATCH[ \t]+(--?[A-Za-z-]+)[ =]?[ \t]*([^\s#]*)", re.MULTILINE)
_LONG = {"-N": "--nodes", "-n": "--ntasks", "-G": "--gpus"}
_SLURM = {
    "--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
    "--ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "--gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "--gres": ("SLURM_GPUS_ON_NODE",),
    "--gpus": ("SLURM_GPUS",),
    "--cpus-per-task": ("SLURM_CPUS_PER_TASK",),
}


def slurm_variables(source: Source, shell: Shell) -> None:
    """Variables that Slurm sets for a script with `#SBATCH` lines; what the user says of them stays."""
    found = False
    for match in _SBATCH.finditer(source.text):
        found = True
        option = _LONG.get(match[1], match[1])
        digits = re.search(r"(\d{1,6})$", match[2])
        for name in _SLURM.get(option, ()):
            if digits and name not in shell.given:
                value = literal(digits[1], source.place(match.start()))
                shell.variables[name] = Variable(entries={"0": value}, exported=True)
    if found:
        place = source.place(0)
        cause = Unknown(why="Slurm sets it", place=place, names=("SLURM_JOB_ID",), single=True)
        if "SLURM_JOB_ID" not in shell.given:
            shell.variables["SLURM_JOB_ID"] = Variable(entries={"0": (Fragment("", place, cause),)}, exported=True)
        held = {name: known_text(v.scalar) for name, v in shell.variables.items() if name.startswith("SLURM_")}
        nodes, per_node = held.get("SLURM_NNODES", "1"), held.get("SLURM_NTASKS_PER_NODE", "")
        if "SLURM_NTASKS" not in held and is_whole(per_node) and is_whole(nodes):
            total = literal(str(int(nodes) * int(per_node)), place)
            shell.variables["SLURM_NTASKS"] = Variable(entries={"0": total}, exported=True)


def inner_scripts(evaluator: Interpreter, words: list[Value], place: ScriptLine, shell: Shell) -> bool:
    """Read the script that a program's words run, if there is one; whether there was."""
    texts = [known_text(word) for word in words]
    name = texts[0].rpartition("/")[2]
    if name in ("ssh", "pdsh") and len(words) > 2:
        return _remote(evaluator, words, texts, place, shell)
    starts_programs = any(text in ("--no-python", "--no_python") for text in texts)
    for at, text in enumerate(texts):
        if text.endswith(".py") or (text in ("python", "python3", "torchrun", "-m") and not starts_programs):
            return False
        if text.partition("=")[0] in _SUBMITTED.get(name, ()):
            value = behind_equals(words[at]) if "=" in text else words[at + 1] if at + 1 < len(words) else ()
            _text(evaluator, value, (), place, shell)
            return True
        if text.rpartition("/")[2] in SHELLS:
            return _shell(evaluator, words[at:], texts[at:], place, with_handed(words[:at], shell) if at else shell)
        if text and text == known_text(shell.name) and name in _QUEUES:
            return True  # the same job once more, which starts when this one ends
        if text.endswith((".sh", ".slurm", ".sbatch", ".bash")) and (at == 0 or name in _STARTERS):
            _file(evaluator, words[at], words[at + 1 :], place, with_handed(words[:at], shell) if at else shell)
            return True
    if name == "sbatch" and shell.stdin is not None:
        _text(evaluator, shell.stdin, (), place, shell)
        return True
    return False


_SUBMITTED = {
    "sbatch": ("--wrap",),
    "xpk": ("--command",),
    "gcloud": ("--command",),
    "bcprun": ("-c", "--cmd"),
    **dict.fromkeys(("su", "script", "runuser"), ("-c", "--command")),
}
"""Options in which programs that submit or start jobs take a script."""
_QUEUES = ("sbatch", "qsub", "bsub")
"""Programs that put a script in a queue."""
_STARTERS = frozenset(
    [
        "srun",
        "sbatch",
        "mpirun",
        "mpiexec",
        "nohup",
        "env",
        "docker",
        "singularity",
        "apptainer",
        "enroot",
        "sudo",
        "timeout",
        "numactl",
        "stdbuf",
        "xargs",
        "salloc",
        "bsub",
        "qsub",
        "flux",
        "kubectl",
        "torchx",
        "deepspeed",
        "ray",
    ]
)


def _shell(evaluator: Interpreter, words: list[Value], texts: list[str], place: ScriptLine, shell: Shell) -> bool:
    at = 1
    while at < len(texts) and texts[at].startswith(("-", "+")) and texts[at] not in ("-", "--"):
        if re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", texts[at]):
            rest = at + 1
            while rest < len(texts) and texts[rest].startswith("-"):
                rest += 1
            if rest < len(words):
                _text(evaluator, words[rest], tuple(words[rest + 1 :]), place, shell)
                return True
            return False
        if texts[at] == "-s":
            break
        at += 2 if texts[at] == "-o" else 1
    if at >= len(texts) or texts[at] == "-s":
        if shell.stdin is None:
            return False
        behind = at + 2 if texts[at + 1 : at + 2] == ["--"] else at + 1
        _text(evaluator, shell.stdin, (words[0], *words[behind:]), place, shell)
        return True
    _file(evaluator, words[at], words[at + 1 :], place, shell)
    return True


def _remote(evaluator: Interpreter, words: list[Value], texts: list[str], place: ScriptLine, shell: Shell) -> bool:
    at = 1
    while at < len(texts) and texts[at].startswith("-"):
        at += 2 if len(texts[at]) == 2 and texts[at][1] in "wpiloFxJ" else 1
    at += texts[0].rpartition("/")[2] == "ssh"
    if at >= len(words):
        return False
    pieces: list[Fragment] = []
    for number, word in enumerate(words[at:]):
        if number:
            pieces.append(Fragment(" ", place))
        pieces += word
    twin = _child(shell)
    twin.variables = {}
    _run(evaluator, Source.of_value(tuple(pieces), place), twin)
    return True


def _child(shell: Shell) -> Shell:
    """A shell that a program starts: it knows what is exported."""
    exported = {name: variable for name, variable in shell.variables.items() if variable.exported}
    functions = {name: body for name, body in shell.functions.items() if name in shell.handed_on}
    return shell.fork(variables=exported, functions=functions, local=None, stdin=None, open_ended=False, positional=())


def _text(evaluator: Interpreter, value: Value, arguments: tuple[Value, ...], place: ScriptLine, shell: Shell) -> None:
    """A script that is a string: words behind it are its `$0`, `$1` and on."""
    twin = _child(shell)
    twin.positional, twin.sourced = arguments[1:], ()
    twin.name = arguments[0] if arguments else literal("bash", place)
    source = Source.of_value(value, place)
    slurm_variables(source, twin)
    _run(evaluator, source, twin)


def _file(evaluator: Interpreter, path: Value, arguments: list[Value], place: ScriptLine, shell: Shell) -> None:
    twin = _child(shell)
    twin.positional, twin.name, twin.sourced = tuple(arguments), path, ()
    source = evaluator.file(path, place, shell)
    if source is None:
        evaluator.record.missing.append((known_text(path), place))
        if any(known_text(word).endswith(".py") for word in arguments):
            evaluator.record.wrappers.add(known_text(path))
        return
    slurm_variables(source, twin)
    _run(evaluator, source, twin)


def _run(evaluator: Interpreter, source: Source, twin: Shell) -> None:

    with suppress(Left):
        evaluator.script(source, twin)
