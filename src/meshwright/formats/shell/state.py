"""Variables, functions and files of a shell, and what it takes for granted."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from meshwright.formats.files import path_end
from meshwright.formats.shell.values import (
    Fragment,
    ScriptLine,
    Unknown,
    Value,
    Variable,
    Word,
    either_variable,
    known_text,
    literal,
)

SET_BY_THE_SYSTEM = frozenset(
    [
        "HOME",
        "USER",
        "LOGNAME",
        "PWD",
        "OLDPWD",
        "HOSTNAME",
        "HOST",
        "RANDOM",
        "SECONDS",
        "PATH",
        "LD_LIBRARY_PATH",
        "PYTHONPATH",
        "UID",
        "EUID",
        "PPID",
        "SHELL",
        "TMPDIR",
        "EPOCHSECONDS",
        "BASHPID",
        "BASH_VERSION",
        "LINENO",
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "NODE_RANK",
        "CUDA_VISIBLE_DEVICES",
        "SLURM_PROCID",
        "SLURM_NODEID",
        "SLURM_LOCALID",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "PMI_RANK",
        "PMI_SIZE",
    ]
)
"""Names that a machine or a launcher sets; a script that reads them cannot be known to find them empty."""
PATHS = frozenset(["PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR", "HOME"])
MAX_STEPS = 100_000
"""Statements and words of a script; launch scripts take hundreds."""
MAX_LETTERS = 200_000
"""Most letters of one variable."""
MAX_PIECES = 4_000
LETTERS_A_STEP = 200
"""Letters handled count as steps, too."""
MAX_DEPTH = 40
MAX_FIELDS = 20_000
"""Words of a command."""


class TooMuch(Exception):
    """A script that goes on without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptCommand:
    """A program that the script starts."""

    words: tuple[Word, ...]
    place: ScriptLine
    environment: Mapping[str, Value]
    """Exported variables."""
    unsure: tuple[Unknown, ...] = ()
    """Conditions nobody can know on which it depends."""
    folder: str = ""
    """Where the script has gone before it, as far as that is known; empty where it has gone nowhere."""


@dataclass(slots=True)
class ScriptState:
    """What all shells of a script have in common: commands in their order, and what had to be assumed."""

    commands: list[ScriptCommand] = field(default_factory=list)
    assumed: dict[str, ScriptLine] = field(default_factory=dict)
    """Variables taken as not set."""
    missing: list[tuple[str, ScriptLine]] = field(default_factory=list)
    """Scripts that are sourced or called and are not here."""
    wrappers: set[str] = field(default_factory=set)
    """Scripts that are not here and are handed a Python program."""
    unsourced: str = ""
    """The first that is sourced: what it sets is not known from there on."""
    broken: list[tuple[str, ScriptLine]] = field(default_factory=list)
    """What cannot be read, and where."""
    files: dict[str, Value] = field(default_factory=dict)
    """Files that the script writes, by name."""
    read: Callable[[str], str | None] = field(default=lambda path: None)
    """The text of a file beside the script, None where there is none."""
    steps: int = 0

    def step(self, letters: int = 0) -> None:
        """Count one step, with the letters it handles.

        Raises:
            TooMuch: there were too many.
        """
        self.steps += 1 + letters // LETTERS_A_STEP
        if self.steps > MAX_STEPS:
            raise TooMuch("it goes on without end")

    def there(self, path: str) -> bool:
        """Whether the script writes a file, or it lies beside the script under the path that it is named by."""
        written = path.strip().rpartition("/")[2] in self.files
        return written or (bool(path) and not path.startswith(("/", "~")) and self.read(path) is not None)

    def break_off(self, why: str, place: ScriptLine) -> None:
        """Note what could not be read."""
        if (why, place) not in self.broken:
            self.broken.append((why, place))


@dataclass(slots=True, kw_only=True)
class Shell:
    """One shell: a fork has a copy."""

    record: ScriptState
    given: Mapping[str, str]
    """What the user says of the environment."""
    variables: dict[str, Variable] = field(default_factory=dict)
    functions: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """Node and source of each body."""
    handed_on: frozenset[str] = frozenset()
    """Functions that `export -f` hands to the shells it starts."""
    positional: tuple[Value, ...] = ()
    open_ended: bool = False
    """Nobody said which arguments there are."""
    name: Value = ()
    """`$0`."""
    sourced: Value = ()
    """The file that is being sourced."""
    start: str = ""
    """Whole path of the folder in which the script is started, where that is known: its own."""
    directory: Value | None = None
    """Where the shell is, once it is known."""
    entered: str = ""
    """The known end of its path, where the beginning is not known."""
    left: Value | None = None
    """Where it was before, for `cd -`."""
    folders: tuple[Value | None, ...] = ()
    """Where `popd` goes back to, the last first."""
    depth: int = 0
    unsure: tuple[Unknown, ...] = ()
    export_all: bool = False
    status: bool | Unknown = True
    stdin: Value | None = None
    """What commands read, where that is known."""
    local: dict[str, Variable | None] | None = None
    """What names of the running function stood for outside it."""
    output: list[Value] | None = None
    """Collects what commands print, inside `$(...)`."""

    def fork(self, **changes: Any) -> Shell:
        """A shell of its own with the same variables."""
        twin = replace(self, variables=dict(self.variables), functions=dict(self.functions))
        for name, value in changes.items():
            setattr(twin, name, value)
        return twin

    def take(self, other: Shell) -> None:
        """Go on as another shell ended."""
        self.variables, self.functions = other.variables, other.functions
        self.positional, self.directory, self.status = other.positional, other.directory, other.status
        self.export_all, self.open_ended = other.export_all, other.open_ended
        self.handed_on, self.left, self.folders = other.handed_on, other.left, other.folders
        self.entered = other.entered

    def join(self, other: Shell, cause: Unknown) -> None:
        """Go on after two ways of which one was taken."""
        for name in self.variables.keys() | other.variables.keys():
            found = either_variable(self.variables.get(name), other.variables.get(name), cause)
            if found is None:
                self.variables.pop(name, None)
            else:
                self.variables[name] = found
        self.functions = {**other.functions, **self.functions}
        if [known_text(word) for word in self.positional] != [known_text(word) for word in other.positional]:
            self.positional, self.open_ended = (), True
        if self.directory != other.directory:
            self.directory, self.entered = None, ""
        self.status = cause

    def meant(self, name: str) -> str:
        """The name of the variable that a name stands for, as `declare -n` says."""
        for _ in range(MAX_DEPTH):
            held = self.variables.get(name)
            if held is None or not held.refers:
                break
            name = held.refers
        return name

    def variable(self, name: str) -> Variable | None:
        """A variable, the script's own before what the user said of the environment."""
        name = self.meant(name)
        if name in self.variables:
            return self.variables[name]
        if name in self.given:
            return Variable(entries={"0": literal(self.given[name], ScriptLine("--env", 1))}, exported=True)
        return None

    def value(self, name: str, place: ScriptLine) -> Value:
        """What `$NAME` gives: of a name nobody set, an unknown."""
        if name == "BASH_SOURCE":
            return self.sourced or self.name
        found = self.variable(name)
        if found is not None:
            if found.hidden is not None and not found.entries:
                return (Fragment("", place, found.hidden),)
            return found.scalar
        return (Fragment("", place, self.unset(name, place)),)

    def unset(self, name: str, place: ScriptLine) -> Unknown:
        """The unknown of a name nobody set."""
        if name in SET_BY_THE_SYSTEM or (name.startswith(("SLURM_", "PBS_", "LSB_", "OMPI_")) and self.in_a_job):
            why = f"the machine sets {name}"
            return Unknown(why=why, place=place, names=(name,), single=name not in PATHS)
        if self.record.unsourced and not name.isdigit():
            why = f"{path_end(self.record.unsourced)} may set {name}, and is not here"
            return Unknown(why=why, place=place, names=(name,))
        shown = f"${name}" if not name.isdigit() else f"argument {name}"
        return Unknown(why=f"{shown} is not set in the script", place=place, names=(name,), unset=True)

    def whole(self, path: str) -> str:
        """A path from where the shell is; from where the script is started if that is not known."""
        here = known_text(self.directory) if self.directory is not None else self.start
        return posixpath.normpath(posixpath.join(here, path))

    @property
    def folder(self) -> str:
        """Where the shell has gone, as far as that is known; empty where it has gone nowhere."""
        return self.entered if self.directory is None else known_text(self.directory)

    @property
    def in_a_job(self) -> bool:
        """Whether the script says what its job asks of Slurm, so that Slurm's variables are set."""
        return "SLURM_NNODES" in self.variables or "SLURM_JOB_ID" in self.variables

    def assume_unset(self, value: Value) -> None:
        """Note the names that are taken as not set."""
        for piece in value:
            if piece.unknown is not None and piece.unknown.unset:
                for name in piece.unknown.names:
                    self.record.assumed.setdefault(name, piece.place)

    def assign(self, name: str, value: Value, *, key: str | None = None, append: bool = False) -> None:
        """Set a variable, or one entry of an array.

        Raises:
            TooMuch: strings grow without end.
        """
        name = self.meant(name)
        held = self.variables.get(name)
        if held is None and append:
            held = self.variable(name)
        if name in self.given and key is None and not append and any(p.unknown and not p.unknown.unset for p in value):
            # The user says what only a run of the command would.
            value = literal(self.given[name], ScriptLine("--env", 1))
        if append and held is not None:
            value = (*held.entries.get(key or "0", ()), *value)
        letters = sum(len(piece.text) for piece in value)
        self.record.step(letters + len(value))
        if letters > MAX_LETTERS or len(value) > MAX_PIECES:
            raise TooMuch(f"{name} grows without end")
        exported = self.export_all or (held.exported if held is not None else name in self.given)
        if key is None and (held is None or not held.array):
            self.variables[name] = Variable(entries={"0": value}, exported=exported)
            return
        entries = dict(held.entries) if held is not None else {}
        entries[key or "0"] = value
        base = held if held is not None else Variable()
        self.variables[name] = replace(base, entries=entries, array=True, exported=exported)

    def assign_array(self, name: str, entries: Sequence[tuple[str | None, Value]], *, append: bool) -> None:
        """Set an array, or add to one.

        Raises:
            TooMuch: it grows without end.
        """
        name = self.meant(name)
        held = self.variable(name)
        found: dict[str, Value] = dict(held.entries) if held is not None and append else {}
        hidden = held.hidden if held is not None and append else None
        keyed = held.keyed if held is not None else False
        following = max((int(key) for key in found), default=-1) + 1 if not keyed else 0
        for key, value in entries:
            if key is None:
                if hidden is not None:
                    # Behind entries nobody can know: their flags stay visible as words of their own.
                    found[str(following)] = ((Fragment("", hidden.place, hidden)),)
                    following, hidden = following + 1, None
                key = str(following)
            found[key] = value
            if not keyed:
                following = int(key) + 1
        self.record.step(10 * len(found))
        exported = held.exported if held is not None else False
        self.variables[name] = Variable(entries=found, array=True, keyed=keyed, exported=exported, hidden=hidden)

    def environment(self) -> dict[str, Value]:
        """Exported variables."""
        return {name: variable.scalar for name, variable in self.variables.items() if variable.exported}
