"""Keys of configuration files as tables of facts, and files read by them.

A target's `keys.tsv` has a line per key: its dotted path, kind (`int`, `float`, `bool`, `str`, `list`, `table`, `any`,
`auto` for that word; `|` parts several), and the values it may take where those are few. A path that ends in `*` is an
open table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from meshwright.errors import Problem, nearest
from meshwright.formats.key_text import key_text, leaves
from meshwright.formats.launch_file import LaunchFile, Said
from meshwright.specs.row import PlanRow
from meshwright.targets import overrides
from meshwright.targets.contract import Files, file_of, marked
from meshwright.targets.key_texts import Keys, table_of

_SUFFIXES = {"JSON": (".json",), "HJSON": (".hjson",), "YAML": (".yaml", ".yml")}
_KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "str": (str,),
    "list": (list,),
    "table": (dict,),
}


_SWITCHES = {
    **dict.fromkeys(("true", "yes", "on", "y", "t", "1"), True),
    **dict.fromkeys(("false", "no", "off", "n", "f", "0", "none", "null", "auto", ""), False),
}
"""Text that programs take for true or false; `auto` is left to who asks for what else it may be."""


_DEGREE = re.compile(
    r"(?:tensor|context|sequence|pipeline|expert|model|ulysses|ring)(?:_model)?_parallel(?:ism)?_(?:size|degree)$"
    r"|^(?:tp|pp|cp|ep|sp)_(?:size|degree)$"
)
"""Names of keys whose number cuts a job."""


_EXPONENT = re.compile(r"[+-]?\d+[eE][+-]?\d+")
"""A number that is text to YAML 1.1, as it has no point; programs take it as a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of a configuration."""

    path: str
    kinds: tuple[str, ...]
    choices: tuple[str, ...] = ()

    def problem(self, value: object) -> str:
        """What is wrong with a value; nothing where it is right."""
        if value is None or "any" in self.kinds or (value == "auto" and "auto" in self.kinds):
            return ""
        if "float" in self.kinds and isinstance(value, str) and _EXPONENT.fullmatch(value):
            return ""
        allowed = tuple(kind for name in self.kinds for kind in _KINDS.get(name, ()))
        if not isinstance(value, allowed) or (isinstance(value, bool) and "bool" not in self.kinds):
            return f"must be {' or '.join(self.kinds)}"
        if self.choices and str(value) not in self.choices:
            return f"must be one of {', '.join(self.choices)}"
        return ""


@cache
def known_keys(package: str) -> dict[str, Key]:
    """Keys of a target by path, from the `keys.tsv` of its folder."""
    found = {}
    for line in _table(package).read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        path, kinds, *choices = line.split("\t")
        some = tuple(choices[0].split(",")) if choices and choices[0] else ()
        found[path] = Key(path=path, kinds=tuple(kinds.split("|")), choices=some)
    return found


def _table(package: str) -> Path:
    """Where a target's folder has its keys."""
    return Path(__file__).with_name(package.rpartition(".")[2]) / "keys.tsv"


def keys_of(target: str, keys: Mapping[str, Any]) -> Keys:
    """The keys that a target's own configuration has; none where its keys are no table of facts."""
    package = f"meshwright.targets.{target.replace('-', '_')}"
    known = known_keys(package) if _table(package).is_file() else {}
    return {path: value for path, value in keys.items() if path in known}


def key_problems(title: str, keys: Mapping[str, Any], known: Mapping[str, Key]) -> Iterator[Problem]:
    """Keys that a target does not know, with the nearest that it does, and values it does not take."""
    for path, value in leaves(keys):
        parts = path.split(".")
        key = known.get(path)
        if key is None and any(f"{'.'.join(parts[:count])}.*" in known for count in range(len(parts))):
            continue
        if key is None and isinstance(value, Mapping):
            continue  # an empty table
        if key is None and any(name.startswith(f"{path}.") for name in known):
            if value is not None:
                why = f"{title} takes a table of keys there, or no value"
                yield Problem(what=f"{path} is {value!r:.80}", why=why, fix="leave it out", field=path)
            continue
        if key is None:
            inside = [name for name in known if name.endswith(f".{path}")]
            close = inside[:1] or nearest(path, known)
            fix = f"it is read as {inside[0]}: move it there" if inside else ""
            fix = fix or (f"did you mean {' or '.join(close)}?" if close else "")
            yield Problem(what=f"unknown key {path[:80]}", why=f"{title} has no such key", fix=fix, field=path[:80])
        elif value != overrides.UNKNOWN and (wrong := key.problem(value)):
            yield Problem(what=f"{path} is {value!r:.80}", why=wrong, field=path)


@dataclass(slots=True, kw_only=True)
class KeyReader:
    """Values of a file by dotted path, gathering what is wrong."""

    keys: Mapping[str, Any]
    problems: list[Problem] = field(default_factory=list)
    file: tuple[str, str] = ("", "")
    """Name and text."""
    seen: dict[str, Any] = field(default_factory=dict)
    """Values that were read."""
    asked: set[str] = field(default_factory=set)
    """Keys that were looked up, whether there or not."""
    over: frozenset[str] = frozenset()
    """Keys that the command says, whatever the file does."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What the file calls a key, where that is not the end of its path."""
    beside: list[KeyReader] = field(default_factory=list)
    """Other files of the run, whose values are told with its own."""
    multiple: int = 1
    """What divides the devices of the job: the product of the degrees that cut it."""
    aside: tuple[str, ...] = ()
    """Tables that another program reads than the one that trains."""

    def get(self, path: str, default: Any = None) -> Any:
        """The value at a path; the default where there is none."""
        at: Any = self.keys
        self.asked.add(path)
        for name in path.split("."):
            if not isinstance(at, Mapping) or at.get(name) is None:
                return default
            at = at[name]
        self.seen[path] = at
        return at

    def said(self) -> tuple[Said, ...]:
        """The values that were read, with where they are written."""
        own = self._placed({path: value for path, value in self.seen.items() if not isinstance(value, Mapping)})
        return own + tuple(said for other in self.beside for said in other.said())

    def unpriced(self) -> tuple[Said, ...]:
        """The values that nothing was read from."""
        tables = tuple(f"{path}." for path, value in self.seen.items() if isinstance(value, Mapping))
        own = self._placed(
            {
                path: value
                for path, value in leaves(self.keys)
                if path not in self.seen and not path.startswith(tables) and value not in (None, {})
            }
        )
        return own + tuple(said for other in self.beside for said in other.unpriced())

    def _placed(self, values: Mapping[str, Any]) -> tuple[Said, ...]:
        name, text = self.file
        lines = [line.strip().lstrip("\"'") for line in text.splitlines()]

        def place(path: str) -> str:
            if path in self.over:
                return overrides.FILE
            last = self.names.get(path) or path.rsplit(".", 1)[-1]
            own = [number for number, line in enumerate(lines, 1) if line.startswith(last)]
            within = [number for number, line in enumerate(lines, 1) if f'"{last}"' in line]
            number = next(iter(own or within), None)
            if len({*own, *within}) > 1:  # of several tables
                number = _line_of_key(name, text, path, last) or number
            return name if number is None else f"{name}:{number}"

        return tuple(Said(option=path, value=f"{value}"[:60], place=place(path)) for path, value in values.items())

    def another(self, keys: Mapping[str, Any], file: tuple[str, str]) -> KeyReader:
        """The reader of another file of the run, which gathers what is wrong with this one.

        Args:
            keys: the keys of the file.
            file: the name and text of it.
        """
        return KeyReader(keys=keys, problems=self.problems, file=file)

    def degree(self, path: str, default: int = 1) -> int:
        """A whole number of at least 1; a problem and the default otherwise."""
        value = self.get(path, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 10**9:
            self.refuse(path, value, "must be a whole number of at least 1")
            return max(1, default)
        return value

    def number(self, path: str, default: int = 0) -> int:
        """A whole number; a problem and the default otherwise."""
        value = self.get(path, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 10**9:
            self.refuse(path, value, "must be a whole number", "write the number that the run takes")
            return default
        return value

    def switch(self, path: str, default: bool = False) -> bool:
        """True or false; text of either is taken, a problem and the default of other text."""
        value = self.get(path, default)
        if not isinstance(value, str) or value == overrides.UNKNOWN:
            return bool(value) and value != overrides.UNKNOWN
        said = value.strip().lower()
        if said not in _SWITCHES:
            self.refuse(path, value, "must be true or false", "write true or false")
            return default
        return _SWITCHES[said]

    def choice(self, path: str, known: Collection[str], default: str = "") -> str:
        """One of some words, in lower case; a problem and the default of other text.

        Args:
            path: the path of the key.
            known: words in lower case.
            default: the value where the key is not there.
        """
        said = self.word(path, default)
        if said in known or said == default:
            return said
        close = nearest(said, known, count=1)
        shown = ", ".join(one for one in known if one)
        self.refuse(path, self.get(path), f"must be one of {shown}", f"did you mean {close[0]}?" if close else "")
        return default

    def word(self, path: str, default: str = "") -> str:
        """Text in lower case."""
        return str(self.get(path, default)).strip().lower()

    def launch(self, row: PlanRow | None, layout: tuple[int, ...] | None = None, **more: Any) -> LaunchFile:
        """What the file says, with the values that were read and what is wrong with them.

        Args:
            row: the plan, None where it could not be read.
            layout: layers of each virtual stage.
            more: other fields of a `LaunchFile`.
        """
        return LaunchFile(
            row=row,
            layout=layout,
            multiple=self.multiple,
            said=self.said(),
            unpriced=self.unpriced(),
            problems=(*self.problems, *self._cuts()),
            **more,
        )

    def _cuts(self) -> Iterator[Problem]:
        """Degrees, by their names, that nothing was read from."""
        known = {problem.field for problem in self.problems}
        for path, value in leaves(self.keys):
            degree = isinstance(value, int) and not isinstance(value, bool) and value > 1
            degree = degree and path.partition(".")[0] not in self.aside
            if degree and path not in self.asked | known and _DEGREE.search(path.rpartition(".")[2]):
                why, fix = "it splits the job, and is not read beside the other keys", "leave it out to check the rest"
                yield Problem(what=f"{path[:80]} is {value}", why=why, fix=fix, field=path)

    def refuse(self, path: str, value: object, why: str, fix: str = "") -> None:
        """Note a value that a plan cannot hold, or that is wrong; once for each key."""
        if any(problem.field == path for problem in self.problems):
            return
        what = f"{path} is not given" if value is None else f"{path} is {value!r:.80}"
        self.problems.append(Problem(what=what, why=why, fix=fix, field=path))


def _line_of_key(name: str, text: str, path: str, last: str) -> int | None:
    """The line of a key by the tables that it stands in; None where the text does not say it."""
    keys = key_text(name, text)
    entry = None if keys is None else keys.entries.get((*path.split(".")[:-1], last))
    return None if keys is None or entry is None or keys.text != text else text.count("\n", 0, entry.start) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFile:
    """The file of keys that a target reads."""

    title: str
    """Title of the target."""
    name: str
    """Name of the file, with the suffix of its language, JSON or YAML."""
    package: str
    """The target's folder, with its `keys.tsv`."""
    marks: tuple[tuple[str, ...], ...]
    """What its text holds, each in one of several spellings."""
    of_lines: Callable[[str, str], bool] | None = None
    """Recognises it otherwise, by name and text."""
    noun: str = ""
    """What the file is, for the sentences; by default the target's configuration."""
    sections: tuple[str, ...] = ()
    """Tables whose keys are checked; all keys where there are none."""
    also: tuple[str, ...] = ()
    """Suffixes of other languages that its loader takes and its own holds."""
    aside: tuple[str, ...] = ()
    """Tables that another program reads than the one that trains."""
    plain: Callable[[Any], Any] = lambda value: value
    """Values as the target's loader makes them of what YAML says."""

    def recognised(self, name: str, text: str) -> bool:
        """Whether a file, by its name and text, is one of these."""
        by_marks = marked((*_SUFFIXES[self._language], *self.also), *self.marks)(name, text)
        return by_marks or (self.of_lines is not None and self.of_lines(name, text))

    @property
    def _language(self) -> str:
        return next(language for language, suffixes in _SUFFIXES.items() if PurePath(self.name).suffix in suffixes)

    def language_of(self, name: str, text: str) -> str:
        """The language of a file: that of its suffix where the target's loader has several."""
        own = self._language
        if own == "YAML" or self.of_lines is None:
            return own
        said = next((one for one, suffixes in _SUFFIXES.items() if PurePath(name).suffix in suffixes), own)
        if said != "JSON":
            return said
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return "HJSON"
        return said

    def read(self, files: Files) -> KeyReader:
        """Reader of the keys among the files of a run, with those that the target does not know as problems.

        Raises:
            InputError: the text is not of the language.
        """
        file = file_of(files, self.name, self.recognised)
        language = self.language_of(*file)
        keys = self.plain(table_of(file[1], language, self.noun or f"{self.title} configuration"))
        keys, over = overrides.laid_over(keys, files)
        own = {name: keys[name] for name in self.sections if isinstance(keys.get(name), dict)}
        checked = own if self.sections else keys
        problems = list(key_problems(self.title, checked, known_keys(self.package)))
        return KeyReader(keys=keys, file=file, problems=problems, over=over, aside=self.aside)


def value_of(keys: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """The value at a dotted path of nested tables; the default where there is none."""
    at: Any = keys
    for name in path.split("."):
        if not isinstance(at, Mapping) or name not in at:
            return default
        at = at[name]
    return at
