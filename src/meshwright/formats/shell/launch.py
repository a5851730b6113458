"""Python programs among the commands of a script: what starts them, how often, and with which words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshwright.formats.shell.state import ScriptCommand
from meshwright.formats.shell.values import ScriptLine, Unknown, Value, Word

_LAUNCHERS = re.compile(r"(torchrun|deepspeed|accelerate|srun|mpirun|mpiexec|horovodrun|ds|torchx)$")
_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "torch.distributed.elastic",
)
_COMMANDS = ("llamafactory-cli", "axolotl", "automodel")
"""Programs that packages install under a name of their own."""
_VERBS = {
    "swift": ("sft", "pt", "rlhf", "infer", "export", "eval", "deploy", "rollout", "sample", "app"),
    "megatron": ("sft", "pt", "rlhf", "export"),
    "tune": ("run",),
    "litgpt": ("finetune", "finetune_full", "finetune_lora", "pretrain"),
    "xtuner": ("train",),
}
"""Verbs that must follow programs whose names are common words."""
_FILE_TOOLS = frozenset(
    (
        "awk", "cat", "chmod", "chown", "cp", "diff", "echo", "find", "git", "grep", "head", "install", "ln", "ls",
        "mkdir", "mv", "patch", "perl", "printf", "rm", "rsync", "scp", "sed", "source", "tail", "tar", "tee", "test",
        "touch", "vi", "vim", "wc", "xargs", "black", "ruff",
    )
)  # fmt: skip
"""What takes Python files as data."""
_PYTHON = re.compile(r"python[0-9.]*$")
_PER_NODE = (
    "nproc_per_node", "nproc-per-node", "ntasks-per-node", "num_gpus", "num-gpus", "npernode", "map-by",
)  # fmt: skip
_NODES = ("nnodes", "num_nodes", "num-nodes", "nodes", "num_machines")
_TOTAL = ("num_processes", "np", "ntasks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A Python program that a script starts."""

    launcher: tuple[Word, ...]
    """Words before the program."""
    program: str
    """The file, or the module behind `-m`."""
    words: tuple[Word, ...]
    """Words behind the program."""
    place: ScriptLine
    environment: Mapping[str, Value]
    unsure: tuple[Unknown, ...]
    """Conditions nobody can know on which it depends."""
    unnamed: Unknown | None = None
    """Why the program's name is not known, where it is not."""
    folder: str = ""
    """Where the script has gone before it, as far as that is known; empty where it has gone nowhere."""

    def reading(self, read: Callable[[str], str | None]) -> Callable[[str], str | None]:
        """The text of a file by a path that a word has: seen from where the script has gone, else as without that.

        Args:
            read: the text of a file by its path from the script, None where there is none.
        """
        return lambda path: seen_from(self.folder, path, read)

    @property
    def distributed(self) -> bool:
        """Whether something that starts many processes starts it."""
        texts = [word.text for word in self.launcher]
        return any(_LAUNCHERS.search(text) or text in _MODULES for text in texts)


def seen_from(folder: str, path: str, read: Callable[[str], str | None]) -> str | None:
    """The text of a file by its path from a folder, else by its path from the script; None where it is at neither.

    Args:
        folder: where the script has gone; empty where it has gone nowhere.
        path: the path as a word has it.
        read: the text of a file by its path from the script, None where there is none.
    """
    there = None if not folder or path.startswith("/") else read(f"{folder}/{path}")
    return read(path) if there is None else there


def launches(commands: Sequence[ScriptCommand]) -> list[Launch]:
    """Python programs in the order they are started."""
    return [found for command in commands for found in _of_command(command)]


def without_program(commands: Sequence[ScriptCommand]) -> list[ScriptCommand]:
    """Commands of a launcher of processes in which no Python program is found."""
    launched = [command for command in commands if command.words and _LAUNCHERS.search(command.words[0].text)]
    return [command for command in launched if not launches((command,))]


def _of_command(command: ScriptCommand) -> Iterator[Launch]:
    words = _handed_over(command.words)
    texts = [word.text for word in words]
    at = _program(texts)
    if at is None:
        return
    program = texts[at]
    yield Launch(
        launcher=words[:at],
        program=program,
        words=words[at + 1 :],
        place=command.place,
        environment=command.environment,
        unsure=command.unsure,
        unnamed=words[at].unknown,
        folder=command.folder,
    )


def _handed_over(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """The command that a program submits to a cluster, where it takes one behind `--`; else the words as they are.

    `python submit.py --nodes 2 -- accelerate launch train.py`: what trains is what stands behind.
    """
    texts = [word.text for word in words]
    for at in (at for at, text in enumerate(texts) if text == "--"):
        before = texts[:at]
        # What stands behind may be a list of commands, whose last starts the program.
        first = max((number for number in range(at, len(texts)) if texts[number] in ("--", "&&", ";")), default=at) + 1
        behind = texts[first:]
        submits = _program(before) is not None and not any(_LAUNCHERS.search(text) for text in before)
        starts = behind and (_LAUNCHERS.search(behind[0]) or _PYTHON.search(behind[0]))
        if submits and starts and _program(behind) is not None:
            return words[first:]
    return words


def _program(texts: list[str]) -> int | None:
    """Position of the program among the words of a command."""
    if texts and texts[0].rpartition("/")[2] in _FILE_TOOLS:
        return None
    for at, text in enumerate(texts):
        name = text.rpartition("/")[2]
        if name in _COMMANDS or (name in _VERBS and at + 1 < len(texts) and texts[at + 1] in _VERBS[name]):
            return at
        if text.endswith(".py") and not text.startswith("-"):
            return at
        module = text in ("-m", "--module") and at + 1 < len(texts) and texts[at + 1] not in _MODULES
        if module and any(_PYTHON.search(word) or _LAUNCHERS.search(word) for word in texts[:at]):
            return at + 1
    return None


def processes(launcher: Sequence[Word]) -> tuple[int | None, Unknown | None]:
    """How many processes a launcher starts.

    Args:
        launcher: words before the program.

    Returns:
        The number, or None where the words do not say it, and what one would have to know.
    """
    found: dict[str, int] = {}
    unknown = None
    each: tuple[int, ...] = ()
    for at, word in enumerate(launcher):
        match = re.fullmatch(r"--?([A-Za-z][A-Za-z_-]*)(?:=(.*))?", word.text, re.DOTALL)
        short = {"-N": "nodes", "-n": "ntasks", "-np": "np"}.get(word.text)
        if match is None and short is None:
            continue
        name = short or (match[1] if match else "")
        kind = "node" if name in _PER_NODE else "nodes" if name in _NODES else "total" if name in _TOTAL else None
        if kind is None:
            continue
        value = word if match and match[2] is not None else launcher[at + 1] if at + 1 < len(launcher) else None
        if value is None:
            continue
        if value.unknown is not None:
            each = value.unknown.by_node if kind == "node" else each
            unknown = unknown or value.unknown
            continue
        digits = re.match(r"(\d{1,7})", (match[2] if match and match[2] is not None else value.text))
        if digits and int(digits[1]) >= 1:
            found[kind] = int(digits[1])
    if each and found.get("nodes", len(each) + 1) <= len(each):
        return sum(each[: found["nodes"]]), None  # nodes of unlike sizes
    if "node" in found:
        if unknown is not None and "nodes" not in found:
            return None, unknown
        return found["node"] * found.get("nodes", 1), None
    if "total" in found and unknown is None:
        return found["total"], None
    return None, unknown
