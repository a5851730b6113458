"""Every error meshwright raises on purpose.

    MeshwrightError            one message, all problems of one input, an exit code
    ├── InputError             exit 2: malformed, missing, contradictory input
    ├── UnsupportedError       exit 4: a model family, device, dtype or target nobody taught us
    ├── InfeasibleError        exit 3: well formed, but no plan fits; carries the repairs
    ├── ViolationError         exit 5: `check` or `validate` found violations
    ├── LostError              exit 1: a worker of a run died or hung; says where
    └── StoppedError           exit 130: the user stopped it; says what is kept

A problem says what is wrong, why (the value and the rule it breaks) and how to fix it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

MAX_PROBLEMS = 40
"""Problems told of one document; a wrong file would give thousands."""
SURELY_MEANT = 0.75
"""Similarity from which a name is offered whatever it starts with."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an input."""

    what: str
    """The sentence a user reads first, with the field and the value in it."""
    why: str = ""
    """The rule that is broken."""
    fix: str = ""
    """What to do about it, with the nearest right name or number."""
    field: str = ""
    """Dotted path of the field, empty for the input as a whole."""


class MeshwrightError(Exception):
    """A problem that meshwright understands and reports without a traceback."""

    exit_code = 1
    default_code = "MW100"

    def __init__(
        self,
        problems: Problem | str | Sequence[Problem] = (),
        *,
        what: str = "",
        why: str = "",
        fix: str = "",
        field: str = "",
        code: str | None = None,
    ) -> None:
        """Name what is wrong: problems gathered before, or one in its own words.

        Args:
            problems: one or several.
            what: what is wrong, where there is a single problem, as in `Problem`; so are `why`, `fix` and `field`.
            why: the rule that is broken.
            fix: what to do about it.
            field: dotted path of the field.
            code: other than that of its kind.
        """
        if isinstance(problems, str):
            problems = Problem(what=problems)
        elif what:
            problems = Problem(what=what, why=why, fix=fix, field=field)
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        self.code = code or self.default_code
        super().__init__(self.render())

    def add(self, problems: Sequence[Problem]) -> None:
        """Name more that has to do with it, behind what is named already.

        Args:
            problems: each a block of its own.
        """
        self.problems += tuple(problems)
        self.args = (self.render(),)

    def render(self) -> str:
        """Text for people: `error[MW123]: what` and indented `why:` and `fix:` lines, one block a problem."""
        blocks = []
        for problem in self.problems:
            lines = [f"error[{self.code}]: {problem.what}"]
            if problem.why:
                lines.append(f"  why: {problem.why}")
            if problem.fix:
                lines.append(f"  fix: {problem.fix}")
            blocks.append("\n".join(lines))
        return "\n".join(blocks)

    def to_dict(self) -> dict[str, object]:
        """The same as data, for `--json`."""
        problems = [
            {"field": p.field or None, "what": p.what, "why": p.why or None, "fix": p.fix or None}
            for p in self.problems
        ]
        return {"schema": "meshwright.error/1", "code": self.code, "exit_code": self.exit_code, "problems": problems}


class InputError(MeshwrightError, ValueError):
    """Usage or malformed input."""

    exit_code = 2
    default_code = "MW200"


class InfeasibleError(MeshwrightError):
    """The input is fine and no plan satisfies it; the problems name the binding constraints and the repairs."""

    exit_code = 3
    default_code = "MW300"


class UnsupportedError(MeshwrightError, ValueError):
    """A model, device, dtype or target that is not supported."""

    exit_code = 4
    default_code = "MW400"


class ViolationError(MeshwrightError):
    """`check` or `validate` found violations or a regression."""

    exit_code = 5
    default_code = "MW500"


class LostError(MeshwrightError):
    """A worker of a run died, failed or hung; the problem says which mesh and at which instruction."""

    default_code = "MW150"
    workers: tuple[int, ...] = ()
    """Numbers of the workers that are the cause, host by host of every mesh."""

    def of(self, workers: Iterable[int]) -> LostError:
        """The same error, with the workers that are its cause."""
        self.workers = tuple(workers)
        return self


class StoppedError(MeshwrightError):
    """The user stopped it half-way; the problem says what was kept and how to go on."""

    exit_code = 130
    default_code = "MW130"


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names closest to a misspelt one, best first, compared without case and punctuation."""
    return list(_nearest(name, tuple(known), count))


@lru_cache(maxsize=1024)  # a damaged file says the same wrong word many times, and a comparison takes 20 ms
def _nearest(name: str, known: tuple[str, ...], count: int) -> tuple[str, ...]:
    by_plain = _by_plain(known)
    said = _plain(name)

    def like(match: str) -> bool:
        # Short words share letters by chance; a slip seldom changes the first one too.
        return match[:1] == said[:1] or difflib.SequenceMatcher(None, said, match).ratio() >= SURELY_MEANT

    close = difflib.get_close_matches(said, by_plain, n=count, cutoff=0.6)
    return tuple(by_plain[match] for match in close if like(match))


@lru_cache(maxsize=16)
def _by_plain(known: tuple[str, ...]) -> dict[str, str]:
    """Names by how they are compared, the first of those that are alike."""
    found: dict[str, str] = {}
    for candidate in known:
        found.setdefault(_plain(candidate), candidate)
    return found


def _plain(text: str) -> str:
    return "".join(c for c in text.lower() if c.isalnum())


def _some_of(names: list[str], most: int = 16) -> str:
    """The first names in order, and how many there are besides."""
    more = len(names) - most
    return ", ".join(sorted(names)[:most]) + (f" and {more} more" if more > 0 else "")


def unknown_name(kind: str, name: str, known: Iterable[str], *, remedy: str = "") -> Problem:
    """The problem of a name nobody knows, with the nearest ones that exist.

    Args:
        kind: the kind of what it should name.
        name: the name as it was given.
        known: names, of which some are listed where none is near.
        remedy: what to do, where it says more than such a list.
    """
    names = list(known)
    close = nearest(name, names)
    listed = "" if remedy else f"known: {_some_of(names)}"
    fix = " ".join(part for part in (f"did you mean {' or '.join(close)}?" if close else listed, remedy) if part)
    return Problem(
        what=f"unknown {kind} {name!r}",
        why=f"no {kind} has this name or alias",
        fix=fix,
        field=kind,
    )
