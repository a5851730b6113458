"""Which of the jobs that a script starts is meant, where it starts several."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from meshwright.errors import Problem
from meshwright.formats.shell.launch import Launch, processes
from meshwright.formats.shell.values import Word
from meshwright.units import whole_number

_OF_THE_RUN = re.compile(
    r"(?:node|machine)_rank|save|load|seed|output_(?:dir|path)|(?:logging|tensorboard|log)_dir|run_name|report_to"
    r"|wandb_\w+|pretrained_checkpoint|learning_rate|(?:min_)?lr|lr_\w+|warmup_\w+|master_(?:addr|port)"
)
"""Options that leave a plan as it is: which node it is, where things are kept, how fast it learns."""
_MOST_JOBS, _MOST_OPTIONS = 12, 3
_LONGEST = 48
_LEAST, _BEFORE, _CUT = 24, 6, "..."
"""Characters of a value that are shown at least, those before where it differs, and what stands for the rest."""
_KEY = re.compile(r"\+{0,2}[A-Za-z_][\w.]*")
_PROGRAM, _PROCESSES = "program", "processes"


@dataclass(frozen=True, slots=True)
class WhichJob(Problem):
    """The question which of several jobs is meant."""

    jobs: int = 0
    """How many there are."""


def job_at(started: Sequence[Launch], job: str, same: Callable[[int], Hashable] | None = None) -> int | Problem:
    """Position of the program that is meant, the last one of its job; or the question which one it is.

    Args:
        started: programs that could be meant, at least one.
        job: the number or the name of the job; empty where nobody named one.
        same: what two programs of one job have alike, by position; by default their options, but for those that leave
            a plan as it is.
    """
    alike = same or (lambda at: _as_started(started[at]))
    jobs: dict[Hashable, int] = {}
    for at in range(len(started)):
        jobs[alike(at)] = at  # a key keeps its first place
    last = list(jobs.values())
    if len(last) == 1 and job in ("", "1"):
        return last[0]
    said = [_options(started[at]) for at in last]
    found = _named(said, [started[at] for at in last], job)
    if len(found) == 1:
        return last[found[0]]
    return _question([started[at] for at in last], said, job, found)


def _as_started(launch: Launch) -> Hashable:
    """What agrees where two programs are one job."""
    said = tuple(
        (name, tuple((word.text, word.unknown) for word in words))
        for name, words in _by_option(launch).items()
        if not _OF_THE_RUN.fullmatch(_plain(name))
    )
    return launch.program, processes(launch.launcher)[0], said


def _plain(name: str) -> str:
    """An option without dashes, a key without the table that it is in."""
    return name.lstrip("-+").replace("-", "_").rpartition(".")[2]


def _by_option(launch: Launch) -> dict[str, tuple[Word, ...]]:
    """Words by the option or key that they say; those before the first by none."""
    found: dict[str, tuple[Word, ...]] = {}
    name = ""
    for word in launch.words:
        key, equals, _ = word.text.partition("=")
        if word.text.startswith("--") or (equals and _KEY.fullmatch(key)):
            name, held = key, (word,) if equals else ()
            found[key] = held
        else:
            found[name] = (*found.get(name, ()), word)
    return found


def _options(launch: Launch) -> dict[str, str]:
    """A program, its processes and its options by name, with `?` for what is not known."""
    said = {name: " ".join(_text(name, word) for word in words) for name, words in _by_option(launch).items()}
    return {_PROGRAM: launch.program, _PROCESSES: str(processes(launch.launcher)[0] or "?"), **said}


def _text(name: str, word: Word) -> str:
    text = word.text.removeprefix(f"{name}=") if name else word.text
    return text if word.unknown is None else f"{text}?"


def _differing(said: Sequence[dict[str, str]]) -> list[str]:
    """Names of what differs between jobs."""
    names = dict.fromkeys(name for one in said for name in one)
    differ = [name for name in names if len({one.get(name) for one in said}) > 1]
    return [name for name in differ if not _OF_THE_RUN.fullmatch(_plain(name))] or differ


def _named(said: Sequence[dict[str, str]], started: Sequence[Launch], job: str) -> list[int]:
    """Positions of the jobs that a number or a name means: a value that differs, or the line where one is started."""
    if not job:
        return []
    number = whole_number(job)
    if number is not None and 1 <= number <= len(said):
        return [number - 1]
    wanted, differing = job.lower(), _differing(said)
    places = [at for at, launch in enumerate(started) if wanted == str(launch.place).lower()]
    values = [
        at for at, one in enumerate(said) if any(wanted in _names_of(one[name]) for name in differing if name in one)
    ]
    return places or values


def _names_of(value: str) -> set[str]:
    """What a value may be called: itself, the last part of a path, that without its suffix."""
    whole = value.lower()
    last = whole.rstrip("/").rpartition("/")[2]
    return {whole, last, last.rpartition(".")[0] or last}


def _question(started: Sequence[Launch], said: Sequence[dict[str, str]], job: str, found: Sequence[int]) -> WhichJob:
    telling = _telling(said, _differing(said))
    shown = [
        f"{number} at {launch.place}{_shown(one, said, telling)}"
        for number, (launch, one) in enumerate(zip(started, said, strict=True), 1)
    ][:_MOST_JOBS]
    more = f"; and {len(started) - _MOST_JOBS} more" if len(started) > _MOST_JOBS else ""
    why = f"one plan is read, and it starts {'; '.join(shown)}{more}"
    names = dict.fromkeys(name for launch in started for unknown in launch.unsure for name in unknown.names)
    if names:
        why += f"; which of them runs depends on {', '.join(names)}"
    count = f"{len(started)} different jobs" if len(started) > 1 else "one job"
    what = f"the script starts {count}"
    if job:
        wrong = f"job {job[:40]!r} is {'several' if found else 'none'} of them"
        what = f"{what}, and {wrong}" if len(started) > 1 else f"{what}, and job {job[:40]!r} is asked for"
    fix = f"say which with --job 1 to --job {len(started)}" if len(started) > 1 else "leave --job out"
    return WhichJob(what=what, why=why, fix=fix, field="job", jobs=len(started))


def _telling(said: Sequence[dict[str, str]], differing: Sequence[str]) -> list[str]:
    """The first names that differ, and those after them that tell jobs apart which agree in the first."""
    telling = list(differing[:_MOST_OPTIONS])
    for name in differing[_MOST_OPTIONS:]:
        if len({_agreeing(one, [*telling, name]) for one in said}) > len({_agreeing(one, telling) for one in said}):
            telling.append(name)
    return telling


def _agreeing(one: dict[str, str], names: Sequence[str]) -> tuple[str | None, ...]:
    return tuple(one.get(name) for name in names)


def _shown(one: dict[str, str], said: Sequence[dict[str, str]], names: Sequence[str]) -> str:
    words = [
        f"{one[name]} {_PROCESSES}"
        if name == _PROCESSES
        else f"{'' if name == _PROGRAM else name} {_short(name, one[name], said)}".strip()
        for name in names
        if one.get(name) or (name.startswith("--") and name in one)
    ]
    return f" ({', '.join(words)})" if words else ""


def _short(name: str, value: str, said: Sequence[dict[str, str]]) -> str:
    """A value in the room that its name leaves: its start, or from where it differs from those of other jobs."""
    room = max(_LONGEST - len(name) - 1, _LEAST)
    if len(value) <= room:
        return value
    others = [other[name] for other in said if other.get(name, value) != value]
    alike = max((_alike(value, other) for other in others), default=0)
    if alike < room - len(_CUT):
        return f"{value[: room - len(_CUT)]}{_CUT}"
    kept, room = value[max(alike - _BEFORE, 0) :], room - len(_CUT)
    return f"{_CUT}{kept}" if len(kept) <= room else f"{_CUT}{kept[: room - len(_CUT)]}{_CUT}"


def _alike(one: str, other: str) -> int:
    """Characters at the start of two texts that are the same."""
    shorter = min(len(one), len(other))
    return next((at for at in range(shorter) if one[at] != other[at]), shorter)
