"""What every framework's log comes down to: steps with their lines, and what the run says about itself."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace

from meshwright.errors import Problem
from meshwright.units import GIB

WARM_UP = 5
"""Steps that may compile, autotune and fill caches: left out where more than these are logged."""
UNITS_S = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6}
NUMBER = r"[-+]?(?:[0-9]+(?:,[0-9]{3})*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedStep:
    """One line about a step; what it does not print is None."""

    line: int
    """Number of the line, from 1."""
    iteration: int
    step_time_s: float | None = None
    tokens_per_s_per_device: float | None = None
    samples_per_s: float | None = None
    """Sequences per second of all devices together."""
    global_batch: int | None = None
    memory_bytes: float | None = None
    """Peak of the rank that prints."""
    flop_per_s_per_device: float | None = None
    """FLOP per second and device by the framework's own count."""
    power_w: float | None = None
    """Power of one device, mean over the step."""

    def seconds(self, tokens_per_step: int, seq_len: int, devices: int) -> float | None:
        """Time of the step: printed, or the step's tokens or sequences over their rate."""
        if self.step_time_s is not None:
            return self.step_time_s
        if self.tokens_per_s_per_device is not None:
            return tokens_per_step / (self.tokens_per_s_per_device * devices)
        return None if self.samples_per_s is None else tokens_per_step / seq_len / self.samples_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedTerm:
    """Seconds of a step that the run itself reports apart."""

    name: str
    """Name of the term in the report."""
    parts: tuple[str, ...]
    """The parts of a predicted step that it takes together."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """A value the run states about itself, and where."""

    line: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """A log that was read."""

    framework: str
    """Name of the framework, one of FRAMEWORKS."""
    steps: tuple[LoggedStep, ...]
    """Steps in the order of the file, one per iteration."""
    stated: tuple[tuple[str, Logged], ...] = ()
    """Shapes and degrees by field name: num_layers, hidden, seq_len, global_batch, devices, tp, pp, ..."""
    terms: tuple[LoggedTerm, ...] = ()
    """Medians of what its steady steps report apart; what they leave of the step is not stated."""


ADDED = tuple(f.name for f in fields(LoggedStep) if f.name not in ("line", "iteration"))
"""What a later line may add to a step."""


@dataclass(slots=True)
class LogReading:
    """A log being read."""

    steps: dict[int, LoggedStep] = field(default_factory=dict)
    stated: dict[str, Logged] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    terms: dict[int, list[LoggedTerm]] = field(default_factory=dict)
    """Terms by iteration."""

    def step(self, found: LoggedStep) -> None:
        """One more step; every rank may print it, the first is kept, with what later lines add."""
        known = self.steps.get(found.iteration)
        if known is None:
            self.steps[found.iteration] = found
            return
        missing = {name: getattr(found, name) for name in ADDED if getattr(known, name) is None}
        self.steps[found.iteration] = replace(known, **missing)

    def state(self, name: str, line: int, text: str) -> None:
        """Something the run says about itself, the first time it does."""
        value = number(text)
        if value is not None and 0 < value < float("inf"):
            self.stated.setdefault(name, Logged(line=line, value=value))

    def positive(self, line: int, name: str, text: str) -> float | None:
        """A number above 0, or None with the problem noted."""
        value = number(text)
        if value is not None and 0 < value < float("inf"):
            return value
        self.problems.append(
            Problem(
                what=f"line {line}: {name} is {text.strip()[:40]!r}",
                why="must be a finite number above 0",
                fix="take the line out, or give the log as the framework wrote it",
                field=name,
            )
        )
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReader:
    """How one framework's log is read."""

    name: str
    aliases: tuple[str, ...] = ()
    """Other names of the framework, in lower case."""
    signature: re.Pattern[str]
    """Found in a line about a step, and in no line of the readers listed behind this one."""
    header_only: bool = False
    """Whether only the first line can carry the signature."""
    read: Callable[[LogReading, list[str]], None]
    """Adds steps, stated values and problems to the reading."""

    def recognises(self, lines: list[str]) -> bool:
        """Whether these are lines of such a log."""
        return any(map(self.signature.search, lines[:1] if self.header_only else lines))


def number(text: str) -> float | None:
    """A number with or without thousands separators, or None."""
    try:
        return float(text.strip().replace(",", ""))
    except ValueError:
        return None


def number_of(text: str) -> float:
    """What NUMBER matched, at most 1e300 so that it is finite."""
    return min(float(text.replace(",", "")), 1e300)


def memory_bytes(amount: str, unit: str) -> float:
    """GiB, GB and MB of a log are powers of 1024: frameworks divide so."""
    return number_of(amount) * {"g": GIB, "m": GIB / 1024, "k": GIB / 1024**2, "b": 1.0}[unit.strip().lower()[:1]]


def memory_in(line: str, pattern: re.Pattern[str]) -> float | None:
    """Bytes of the amount and unit that a pattern finds in a line."""
    match = pattern.search(line)
    return memory_bytes(match[1], match[2]) if match else None


def found(pattern: str, line: str) -> str | None:
    """The first group of a pattern in a line."""
    match = re.search(pattern, line)
    return match[1] if match else None


def steady(steps: tuple[LoggedStep, ...]) -> tuple[LoggedStep, ...]:
    """Steps after warm-up: those past iteration WARM_UP from the first, else all but the first, else the only one."""
    first = min(step.iteration for step in steps)
    late = tuple(step for step in steps if step.iteration >= first + WARM_UP)
    return late or steps[1:] or steps


def steady_terms(terms: Mapping[int, list[LoggedTerm]]) -> tuple[LoggedTerm, ...]:
    """Medians of the terms of steady steps, by name."""
    if not terms:
        return ()
    first = min(terms)
    chosen = [terms[at] for at in terms if at >= first + WARM_UP] or list(terms.values())[1:] or list(terms.values())
    found: dict[str, list[LoggedTerm]] = {}
    for term in (one for step in chosen for one in step):
        found.setdefault(term.name, []).append(term)
    return tuple(replace(several[0], seconds=median([term.seconds for term in several])) for several in found.values())


def median(values: list[float]) -> float:
    """Median over the steady steps, so that a checkpoint or a hiccup does not count."""
    return float(statistics.median(values))
