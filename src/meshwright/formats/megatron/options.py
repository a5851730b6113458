"""The options Megatron-LM knows, and reading a list of words as its parser would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from meshwright.errors import Problem, nearest
from meshwright.formats.megatron.earlier import EARLIER
from meshwright.formats.shell import ScriptLine, Unknown, Word, word

ASKED_FOR = ("--norm-epsilon", "--rotary-base")
"""Options that written scripts leave to a variable where a model's config does not state the constant."""


Flags = list[tuple[str, str]]
"""Options as written: each with its value, empty for switches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of the parser."""

    flags: tuple[str, ...]
    kind: str
    """`switch`, `int`, `float` or `str`."""
    default: str
    choices: tuple[str, ...]
    takes: str
    """Values it takes: `0`, `1`, another number, `+` one or more, `*` any."""


@cache
def known_options() -> dict[str, Option]:
    """Every option by each of its flags."""
    found = {}
    text = Path(__file__).with_name("options.tsv").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        flags, kind, default, choices, takes = line.split("\t")
        option = Option(
            flags=tuple(flags.split(",")),
            kind=kind,
            default=default,
            choices=tuple(choices.split(",")) if choices else (),
            takes=takes,
        )
        found.update(dict.fromkeys(option.flags, option))
    return found


@dataclass(frozen=True, slots=True)
class Values:
    """Options read from words: the first flag of each with its values as text."""

    given: dict[str, tuple[str, ...]]
    problems: tuple[Problem, ...]
    """Missing values, wrong types and choices, words that belong to no option."""
    places: dict[str, ScriptLine] = field(default_factory=dict)
    """Where the value of each was written, or the option itself."""
    written: dict[str, tuple[str, ...] | None] = field(default_factory=dict)
    """Values as the script has them where they mean others, None for options that it does not have."""
    hidden: dict[str, Unknown] = field(default_factory=dict)
    """Options whose value, or presence, nobody can know."""
    strays: tuple[tuple[ScriptLine, Unknown], ...] = ()
    """Words that could be any option."""
    unknown: tuple[Problem, ...] = ()
    """Options that Megatron-LM does not have."""
    foreign: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Values of these."""
    notes: tuple[str, ...] = ()
    """Earlier names and what they were taken for."""
    asked: set[str] = field(default_factory=set)
    """Options that were looked up."""

    def has(self, flag: str) -> bool:
        """Whether the option was given."""
        self.asked.add(flag)
        return flag in self.given

    def all(self, flag: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """All its values, or the default."""
        self.asked.add(flag)
        return self.given.get(flag, default)

    def text(self, flag: str, default: str = "") -> str:
        """The first value, or the default."""
        values = self.all(flag)
        return values[0] if values else default

    def whole(self, flag: str, default: int = 0) -> int:
        """The first value as an integer; one that is none is a problem already."""
        try:
            return int(self.text(flag, str(default)))
        except ValueError:
            return default

    def number(self, flag: str, default: float = 0.0) -> float:
        """The first value as a number; one that is none is a problem already."""
        try:
            return float(self.text(flag, str(default)))
        except ValueError:
            return default

    @property
    def open(self) -> dict[str, Unknown]:
        """Options that were looked up and that nobody can know; constants that change no price are left out."""
        wanted = self.asked.difference(ASKED_FOR)
        return {flag: unknown for flag, unknown in self.hidden.items() if flag in wanted}

    @property
    def unread(self) -> tuple[str, ...]:
        """Options that were given, known or not, and nobody looked up."""
        return tuple(flag for flag in (*self.given, *self.hidden) if flag not in self.asked)


def read_options(words: Sequence[str | Word]) -> Values:
    """Sort words into options and values; what does not fit is a problem, never an exception."""
    reader = _Reader([word(one) if isinstance(one, str) else one for one in words])
    reader.run()
    return Values(
        given=reader.given,
        problems=tuple(reader.problems),
        places=reader.places,
        hidden=reader.hidden,
        strays=tuple(reader.strays),
        unknown=tuple(reader.unknown),
        foreign=reader.foreign,
        notes=tuple(dict.fromkeys(reader.notes + _together(reader.renamed))),
    )


def _together(renamed: Mapping[str, Mapping[str, None]]) -> list[str]:
    """One sentence for all options that were taken for the same."""
    return [f"{', '.join(flags)} {'is' if len(flags) == 1 else 'are'} {meaning}" for meaning, flags in renamed.items()]


class _Reader:
    """One pass over the words."""

    def __init__(self, words: list[Word]) -> None:
        self.words, self.at = words, 0
        self.given: dict[str, tuple[str, ...]] = {}
        self.places: dict[str, ScriptLine] = {}
        self.hidden: dict[str, Unknown] = {}
        self.strays: list[tuple[ScriptLine, Unknown]] = []
        self.problems: list[Problem] = []
        self.unknown: list[Problem] = []
        self.foreign: dict[str, tuple[str, ...]] = {}
        self.notes: list[str] = []
        self.renamed: dict[str, dict[str, None]] = {}
        self.last, self.held = "", tuple[str, ...]()
        self.of_deepspeed = any(one.text == "--deepspeed" for one in words)

    def run(self) -> None:
        while self.at < len(self.words):
            here = self.words[self.at]
            self.at += 1
            self.word(here)

    def word(self, here: Word) -> None:
        """An option with its values, or a word where an option is expected."""
        flag, equals, attached = here.text.partition("=")
        if here.unknown is not None and not flag.startswith("--"):
            self.stray(here, here.unknown)
        elif here.unknown is not None and not equals:
            # Its name itself is not known, as in `--${DTYPE}`.
            self.strays.append((here.place or here.unknown.place, here.unknown))
        elif not flag.startswith("--") or len(flag) == 2:
            self.beyond(here)
        elif flag in EARLIER:
            self.earlier(flag, attached if equals else None, here)
        elif (option := known_options().get(flag)) is None:
            self.of_others(flag, attached if equals else None, here)
        else:
            self.known(flag, option, attached if equals else None, here)

    def of_others(self, flag: str, attached: str | None, here: Word) -> None:
        """An option that Megatron-LM does not know."""
        values = self.values(len(self.words))
        self.foreign[flag] = tuple(value.text for value in values) if attached is None else (attached,)
        if (place := (values[0] if values else here).place) is not None:
            self.places[flag] = place
        self.unknown.append(_unknown(flag))

    def known(self, flag: str, option: Option, attached: str | None, here: Word) -> None:
        """An option of Megatron-LM with its values, unless they are not known."""
        name = self.last = option.flags[0]
        words = [here] if attached is not None else self.values(self.most(option))
        found = [word.text for word in words] if attached is None else [attached]
        last = words[-1] if words else here
        if last.place is not None:
            self.places[name] = last.place
        if last.unknown is not None:
            self.hidden[name] = last.unknown
            self.given.pop(name, None)
            return
        self.hidden.pop(name, None)
        if self.of_deepspeed:
            # Megatron-DeepSpeed writes its choices in lower case.
            cased = {choice.lower(): choice for choice in option.choices}
            found = [cased.get(value, value) for value in found]
        elif (said := _OF_OTHERS.get((name, "".join(found)))) is not None:
            self.notes.append(f"{name} {found[0]} is {said[0]} {said[1]}")
            found = [said[0]]
        self.problems += _value_problems(flag, option, found)
        self.given[name] = self.held = tuple(found)

    def most(self, option: Option) -> int:
        """The most values that an option takes here."""
        several = self.of_deepspeed and option.flags[0] == "--num-experts"  # one for each layer that has them
        return len(self.words) if several else _count_of(option, len(self.words))

    def beyond(self, here: Word) -> None:
        """Words behind all that the last option takes: the rest of a value that is not quoted, or nobody's."""
        words = [here.text]
        while self.at < len(self.words) and not self.words[self.at].text.startswith("--"):
            if self.words[self.at].unknown is not None:
                break
            words.append(self.words[self.at].text)
            self.at += 1
        text, held = " ".join(words), self.held
        if held and held[-1].lower() in _PLACEHOLDERS:
            self.notes.append(f"{self.last} holds what its author left to fill in: {' '.join([*held, text])[:80]!r}")
            return
        why, fix = "options start with --", ""
        if self.last and not held:
            why, fix = f"{self.last} is a switch, which takes no value", "leave it out"
        if held:
            why = f"{self.last} takes {held[-1][:80]!r} alone: bash parts words at spaces that no quotes hold"
            fix = "write the value in quotes, also where a variable holds it"
        self.problems.append(Problem(what=f"{text[:80]!r} belongs to no option", why=why, fix=fix, field=words[0][:80]))

    def values(self, most: int) -> list[Word]:
        """The words up to the next option, at most so many."""
        found: list[Word] = []
        while len(found) < most and self.at < len(self.words) and not self.words[self.at].text.startswith("--"):
            found.append(self.words[self.at])
            self.at += 1
        return found

    def stray(self, here: Word, unknown: Unknown) -> None:
        """A word nobody knows where an option may stand."""
        place = here.place or unknown.place
        if unknown.unset:
            names = " ".join(f"${name}" for name in unknown.names)
            self.notes.append(f"{names} ({place}) is taken as empty; --env NAME=VALUE sets it")
            return
        if unknown.flags is None:
            self.strays.append((place, unknown))
            return
        options = known_options()
        for flag in sorted(unknown.flags):
            name = options[flag].flags[0] if flag in options else flag
            self.hidden[name] = unknown
            self.given.pop(name, None)

    def earlier(self, flag: str, attached: str | None, here: Word) -> None:
        """An option that the newest release calls otherwise, or no longer has."""
        old = EARLIER[flag]
        values = [attached] if attached is not None else []
        hidden, place = None, here.place
        if attached is None:
            for value in self.values(1 if old.takes else 0):
                values.append(value.text)
                hidden, place = value.unknown, value.place or place
        self.last, self.held = flag, tuple(values)
        values = [dict(old.values).get(value, value) for value in values]
        self.renamed.setdefault(old.meaning, {})[flag] = None
        for name, fixed in old.gives:
            if name in self.given:
                continue
            self.given[name] = tuple(values) if fixed is None else (fixed,) if fixed else ()
            option = known_options().get(name)
            if fixed is None and hidden is None and option is not None and option.kind in ("int", "float"):
                self.problems += _value_problems(flag, option, values)
            if place is not None:
                self.places[name] = place
            if hidden is not None and fixed is None:
                self.hidden[name] = hidden
                self.given.pop(name)


def _count_of(option: Option, most: int) -> int:
    return 0 if option.takes == "0" else int(option.takes) if option.takes.isdigit() else most


NO_SUCH_OPTION = "Megatron-LM has no such option"


def _unknown(flag: str) -> Problem:
    close = nearest(flag, known_options())
    return Problem(
        what=f"unknown option {flag}",
        why=NO_SUCH_OPTION,
        fix=f"did you mean {' or '.join(close)}?" if close else "",
        field=flag,
    )


_PLACEHOLDERS = ("your", "<your", "[your", "path/to/your", "/path/to/your")
"""First words of what stands in a published script until its user says a path of his own."""
_OF_OTHERS = {
    ("--position-embedding-type", "rotary"): ("rope", "by its name of forks"),
    ("--moe-token-dispatcher-type", "alltoall_seq"): ("alltoall", "by its name of releases before 2025"),
    **{
        ("--moe-router-load-balancing-type", own): (name, "by its name of MindSpeed")
        for own, name in (
            ("noaux_tc", "none"),
            ("pai_megatron_aux_loss", "aux_loss"),
            ("group_limited_greedy", "aux_loss"),
            ("softmax_topk", "none"),
            ("sparsemixer_topk", "none"),
        )
    },
}
"""Values by another name, each with today's and whose name it is."""
_OF_FORKS = ("--tokenizer-type", "--lr-decay-style", "--dataloader-type")
"""Options whose values forks add to: they change no plan, and the vocabulary is asked for where nothing says it."""


def _value_problems(flag: str, option: Option, values: list[str]) -> list[Problem]:
    least = int(option.takes) if option.takes.isdigit() else 1 if option.takes == "+" else 0
    if len(values) < least:
        return [Problem(what=f"{flag} has no value", why=f"it takes {_count(option.takes)}", field=flag)]
    if option.takes == "0" and values:
        return [Problem(what=f"{flag} is given the value {values[0]!r}", why="it is a switch", field=flag)]
    problems = []
    for value in values:
        if not value and flag in ASKED_FOR:
            continue  # a variable that the script asks for when it starts
        if option.kind in ("int", "float") and not _reads(value, option.kind):
            noun = "a whole number" if option.kind == "int" else "a number"
            problems.append(Problem(what=f"{flag} is {value!r}", why=f"must be {noun}", field=flag))
        elif option.choices and value not in option.choices and flag not in _OF_FORKS:
            close = nearest(value, option.choices, count=1)
            fix = f"did you mean {close[0]}?" if close else ""
            why = f"must be one of {', '.join(option.choices)}"
            problems.append(Problem(what=f"{flag} is {value!r}", why=why, fix=fix, field=flag))
    return problems


def _count(takes: str) -> str:
    return {"1": "one value", "+": "one or more values"}.get(takes, f"{takes} values")


def _reads(value: str, kind: str) -> bool:
    try:
        number = int(value) if kind == "int" else float(value)
    except ValueError:
        return False
    return number == number and abs(number) < 1e18
