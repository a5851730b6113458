"""Mutations of the source, one at a time, and which of them no test near it notices: `make mutants`.

    python -m tests.mutants                              files changed since main
    python -m tests.mutants src/meshwright/search/grid.py --tests tests/search --most 40
    python -m tests.mutants --draw 12 --seed 31          12 places in each folder that decides what is answered
    python -m tests.mutants --draw 24 --seed 6102 --in-place     the same against all tests of a room that reach them

Cosmic Ray makes the mutations; here they are drawn, run in a copy of the repository against the tests near them, and
counted. A survivor is a change that nobody would have noticed: it wants a test, unless it means the same. Undecided is
one that no test notices while some fail or are cut off without it, too: it counts neither way.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from random import Random

from tests.mutants_alike import means_the_same, unseen, within
from tests.mutants_near import PACKAGE, ROOT, tests_near, text_of

FOLDERS = ("kernels", "estimate", "search", "schedules", "planning/compose", "planning/mixed")
"""Drawn from where no files are named: what a plan costs, and which one is found."""
COPIED = (
    "src",
    "tests",
    "benchmarks",
    "docs",
    "examples",
    "pyproject.toml",
    "README.md",
    "CONTRIBUTING.md",
    "Makefile",
)
CHANGES = ("ReplaceBinaryOperator", "ReplaceComparisonOperator", "ReplaceUnaryOperator", "Replace", "AddNot", "Zero")
"""Beginnings of the operators that are drawn. Numbers are left alone: those that a fit gives are not wrong by one."""
GRACE_S = 60.0
"""By the clock beyond so many times the limit of processor time: what only waits has been noticed, too."""
WAITING = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One place and what is done there."""

    file: Path
    operator: str
    occurrence: int
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} {self.operator.removeprefix('core/')}"


class Verdict(Enum):
    """What tests say of a mutation."""

    NOTICED = "is noticed"
    RECORDED = "is noticed by recorded answers alone"
    SURVIVES = "survives"
    UNDECIDED = "is undecided"
    """No test that passes without the mutation fails with it, but not every test could be asked."""


@dataclass(slots=True, kw_only=True)
class Copy:
    """A copy of the repository whose source may be changed."""

    place: Path
    limit_s: float
    """Processor time of a file of tests under a mutation: what goes on for longer has been noticed."""
    writes: int = 0
    sound: dict[tuple[str, ...], bool] = field(default_factory=dict)
    """Whether tests pass without a mutation, by their names."""

    def verdict(self, mutation: Mutation, rings: list[list[str]]) -> Verdict:
        """What rings of tests say of a mutation, the nearest asked first.

        Args:
            mutation: made in the copy, and taken back.
            rings: files of tests, each asked where those before it notice nothing.
        """
        changed = self.changed_by(mutation)
        return Verdict.UNDECIDED if changed is None else self.verdict_of(mutation.file, changed, rings)

    def changed_by(self, mutation: Mutation) -> str | None:
        """The text of a file with a mutation; None where that is no Python, as `*` between arguments changed is not."""
        from cosmic_ray.mutating import mutate_code
        from cosmic_ray.plugins import get_operator

        changed = mutate_code(self._text(mutation.file), get_operator(mutation.operator)(), mutation.occurrence)
        try:
            return changed if changed and ast.parse(changed) else None
        except SyntaxError:
            return None

    def verdicts_in_place(self, mutations: list[Mutation]) -> Iterator[tuple[Mutation, Verdict]]:
        """What those tests of a mutation's room say that reach it; of what runs at imports, the tests near it."""
        from tests.mutants_in_place import said_in_place

        rooms: dict[str, list[tuple[Mutation, str]]] = {}
        for one in mutations:
            if (text := self.changed_by(one)) is not None:
                rooms.setdefault(one.file.relative_to(PACKAGE).parts[0], []).append((one, text))
        for room, own in rooms.items():
            made = [(self.place / one.file.relative_to(ROOT), one.line, text) for one, text in own]
            for (mutation, text), said in zip(own, said_in_place(self.place, room, made, self.limit_s), strict=True):
                near = [] if said else list(tests_near(mutation.file))
                yield mutation, Verdict(said) if said else self.verdict_of(mutation.file, text, near)

    def verdict_of(self, file: Path, changed: str, rings: list[list[str]]) -> Verdict:
        """The same of a file with another text."""
        verdict = Verdict.SURVIVES
        for tests in rings:
            for failed in self._failed_with(file, changed, tests):
                if self._sound(failed):
                    return Verdict.NOTICED
                verdict = Verdict.UNDECIDED
        return verdict

    def _failed_with(self, file: Path, changed: str, tests: list[str]) -> Iterator[tuple[str, ...]]:
        """What fails, as of `_failed`, while a file has another text.

        Many tests together may need longer than the limit without a mutation: each file has the limit for itself then.
        """
        source = self._text(file)
        for asked in (tests, *([one] for one in tests if len(tests) > 1)):
            self._write(file, changed)
            try:
                failed = self._failed(asked)
            finally:
                self._write(file, source)
            if failed and (len(asked) == 1 or failed != tuple(asked)):
                yield failed
            elif not failed and asked == tests:
                return

    def _sound(self, tests: tuple[str, ...]) -> bool:
        """Whether tests pass without a mutation, within the limit."""
        if tests not in self.sound:
            self.sound[tests] = not self._failed(list(tests))
            if not self.sound[tests]:
                print(f"fails or is cut off without a mutation, too: {' '.join(tests)}", flush=True)
        return self.sound[tests]

    def _text(self, file: Path) -> str:
        """As it was copied: who works on the repository meanwhile changes nothing here."""
        return (self.place / file.relative_to(ROOT)).read_text(encoding="utf-8")

    def _write(self, file: Path, text: str) -> None:
        """With a time of its own: Python knows stale bytecode by whole seconds and sizes."""
        target = self.place / file.relative_to(ROOT)
        target.write_text(text, encoding="utf-8")
        self.writes += 1
        os.utime(target, (self.writes, self.writes))

    def _failed(self, tests: list[str]) -> tuple[str, ...]:
        """The first test that fails, or all of them where none is named; none where all pass."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-rfE", "--tb=no", "-m", "not slow"]
        ran = subprocess.Popen(
            [*command, "-p", "no:cacheprovider", *tests],
            cwd=self.place,
            env={**os.environ, "PYTHONPATH": str(self.place / "src")},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (int(self.limit_s), int(self.limit_s) + 5)),
        )
        try:
            said, _ = ran.communicate(timeout=WAITING * self.limit_s + GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(ran.pid, 9)
            said, _ = ran.communicate()
        if ran.returncode in (0, 5):
            return ()
        named = re.search(r"^(?:FAILED|ERROR) (\S+?::.+?)(?: - .*)?$", said, re.MULTILINE)
        return (named[1],) if named else tuple(tests)


def main() -> int:
    """Run mutations, and print those that survive and the share that was noticed."""
    words = argparse.ArgumentParser(prog="python -m tests.mutants")
    words.add_argument("files", nargs="*", help="of src, or folders; by default those changed since --since")
    words.add_argument("--since", default="main")
    words.add_argument("--tests", nargs="*", default=[], help="by default those near each file")
    words.add_argument("--most", type=int, default=20, help="mutations of a file, drawn by --seed")
    words.add_argument("--draw", type=int, default=0, help="mutations of each folder, by the length of its files")
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--lines", default="", help="FIRST-LAST: only there")
    words.add_argument("--limit", type=float, default=120.0, help="processor seconds of a file of tests, mutated")
    words.add_argument(
        "--in-place", action="store_true", help="against all tests of the room and recorded answers, without --minutes"
    )
    words.add_argument("--minutes", type=float, default=60.0, help="at most")
    asked = words.parse_args()
    end = time.monotonic() + 60 * asked.minutes
    counted = dict.fromkeys(Verdict, 0)
    mutations = list(_asked_for(asked))
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy(place=copied(Path(folder)), limit_s=asked.limit)
        found = copy.verdicts_in_place(mutations) if asked.in_place else _verdicts(copy, mutations, asked.tests, end)
        for mutation, verdict in found:
            counted[verdict] += 1
            if verdict is not Verdict.NOTICED:
                print(f"{verdict.value}: {mutation}", flush=True)
    print(summary(counted, len(mutations)))
    return 0


def _verdicts(
    copy: Copy, mutations: list[Mutation], tests: list[str], end_s: float
) -> Iterator[tuple[Mutation, Verdict]]:
    """What the tests near each mutation say of it, until a moment of the monotonic clock."""
    for mutation in mutations:
        if time.monotonic() > end_s:
            return
        yield mutation, copy.verdict(mutation, [tests] if tests else list(tests_near(mutation.file)))


def summary(counted: dict[Verdict, int], asked: int) -> str:
    """The share noticed of those decided, and how many were not.

    Args:
        counted: mutations of each verdict.
        asked: mutations drawn, those for which no time was left included.
    """
    recorded, undecided = counted[Verdict.RECORDED], counted[Verdict.UNDECIDED]
    noticed = counted[Verdict.NOTICED] + recorded
    decided = noticed + counted[Verdict.SURVIVES]
    share = f" ({noticed / decided:.0%})" if decided else ""
    rest = asked - decided - undecided
    said = [f"{recorded} of them by recorded answers alone"] * bool(recorded)
    said += [f"{undecided} undecided"] * bool(undecided) + [f"{rest} not run"] * bool(rest)
    return ", ".join([f"{noticed} of {decided} mutations noticed{share}", *said])


def _asked_for(asked: argparse.Namespace) -> Iterator[Mutation]:
    """The mutations of a command line."""
    if asked.draw:
        for name in asked.files or [str(PACKAGE / folder) for folder in FOLDERS]:
            yield from drawn_over(sources([name]), asked.draw, asked.seed)
        return
    for file in sources(asked.files) if asked.files else changed_files(asked.since):
        yield from drawn(mutations_of(file, asked.lines), asked.most, asked.seed)


def sources(names: list[str]) -> list[Path]:
    """The source files of names, which may be folders."""
    paths = [Path(name).resolve() for name in names]
    found = [file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    return [file for file in found if file.name != "__init__.py"]


def changed_files(since: str) -> list[Path]:
    """Source files that differ from a commit, those not committed yet included."""
    listed = subprocess.run(
        ["git", "diff", "--name-only", "--diff-filter=AM", since, "--", "src"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return [ROOT / name for name in listed if name.endswith(".py") and not name.endswith("__init__.py")]


def mutations_of(file: Path, lines: str = "") -> list[Mutation]:
    """All mutations of a file that somebody could see, in its order.

    Args:
        file: of the source.
        lines: `FIRST-LAST`; all where empty.
    """
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator, operator_names

    first, _, last = lines.partition("-")
    tree, alike = get_ast_from_path(file), unseen(file.read_text(encoding="utf-8"))
    found = []
    for name in sorted(operator_names()):
        if means_the_same(name) or not name.partition("/")[2].startswith(CHANGES):
            continue
        operator, occurrence = get_operator(name)(), 0
        for node in ast_nodes(tree):
            for (line, column), _ in operator.mutation_positions(node):
                asked_for = not lines or int(first) <= line <= int(last or first)
                if asked_for and not within(alike, line, column):
                    found.append(Mutation(file=file, operator=name, occurrence=occurrence, line=line, column=column))
                occurrence += 1
    return sorted(found, key=lambda one: (one.line, one.operator, one.occurrence))


def drawn(mutations: list[Mutation], most: int, seed: int | str) -> list[Mutation]:
    """One of each of so many places at most, the same ones for a seed."""
    places: dict[tuple[int, int], list[Mutation]] = {}
    for one in mutations:
        places.setdefault((one.line, one.column), []).append(one)
    chance = Random(seed)
    kept = chance.sample(sorted(places), min(most, len(places)))
    return [chance.choice(places[place]) for place in sorted(kept)]


def drawn_over(files: list[Path], count: int, seed: int) -> list[Mutation]:
    """So many mutations of some files, the same ones for a seed; a file is drawn by its length, a place of it once.

    Args:
        files: of the source.
        count: mutations.
        seed: of the draw.
    """
    chance = Random(f"{seed}/{files[0].parent.relative_to(PACKAGE)}")
    times: dict[Path, int] = {}
    for file in chance.choices(files, [len(text_of(file)) for file in files], k=count):
        times[file] = times.get(file, 0) + 1
    return [one for file in sorted(times) for one in drawn(mutations_of(file), times[file], chance.random().hex())]


def copied(folder: Path) -> Path:
    """The repository's files that tests need, in a folder where they may be changed."""
    for name in COPIED:
        source, ignored = ROOT / name, shutil.ignore_patterns("__pycache__")
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=ignored)
        else:
            shutil.copy(source, folder / name)
    return folder


if __name__ == "__main__":
    sys.exit(main())
