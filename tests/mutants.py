"""Mutations of the source, one at a time, and which of them no test of the same folder notices: `make mutants`.

    python -m tests.mutants                              files changed since main
    python -m tests.mutants src/meshwright/search/grid.py --tests tests/search --most 40

Cosmic Ray makes the mutations; here they are drawn, run in a copy of the repository, each against the tests that mirror
the file, and counted. A survivor is a change of an operator or a comparison that nobody would have noticed: it wants a
test, unless the change means the same.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "meshwright"
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
UNSEEN = "_BitOr_"
"""`int | None` is the same annotation whatever stands between."""


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


def main() -> int:
    """Run mutations, and print those that survive and the share that was noticed."""
    words = argparse.ArgumentParser(prog="python -m tests.mutants")
    words.add_argument("files", nargs="*", help="of src; by default those changed since --since")
    words.add_argument("--since", default="main")
    words.add_argument("--tests", nargs="*", default=[], help="by default the folder or file that mirrors each")
    words.add_argument("--most", type=int, default=20, help="mutations of a file, drawn by --seed")
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--lines", default="", help="FIRST-LAST: only there")
    words.add_argument("--minutes", type=float, default=60.0, help="at most")
    asked = words.parse_args()
    files = [Path(name).resolve() for name in asked.files] or changed_files(asked.since)
    end = time.monotonic() + 60 * asked.minutes
    noticed = ran = 0
    for file in files:
        tests = asked.tests or tests_of(file)
        if not tests:
            print(f"{file.relative_to(ROOT)}: no tests mirror it")
            continue
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            place = copied(Path(folder))
            quickest, limit_s = time.monotonic(), None
            if not passes(place, tests, limit_s):
                print(f"{file.relative_to(ROOT)}: its tests fail without a mutation")
                return 1
            limit_s = 10.0 + 5.0 * (time.monotonic() - quickest)
            for mutation in drawn(mutations_of(file, asked.lines), asked.most, asked.seed):
                if time.monotonic() > end:
                    break
                ran += 1
                if survives(place, mutation, tests, limit_s):
                    print(f"survives: {mutation}", flush=True)
                else:
                    noticed += 1
    share = f"{noticed / ran:.0%}" if ran else "none"
    print(f"{noticed} of {ran} mutations noticed ({share}) in {len(files)} files")
    return 0


def changed_files(since: str) -> list[Path]:
    """Source files that differ from a commit, those not committed yet included."""
    listed = subprocess.run(
        ["git", "diff", "--name-only", "--diff-filter=AM", since, "--", "src"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    return [ROOT / name for name in listed if name.endswith(".py") and not name.endswith("__init__.py")]


def tests_of(file: Path) -> list[str]:
    """The tests that mirror a source file: `test_NAME.py` beside those of its folder, else the folder."""
    within = file.relative_to(PACKAGE)
    own = Path("tests") / within.parent / f"test_{within.stem}.py"
    folder = Path("tests") / within.parent
    return [str(one) for one in (own, folder) if (ROOT / one).exists()][:1]


def mutations_of(file: Path, lines: str = "") -> list[Mutation]:
    """All mutations of a file, in its order.

    Args:
        file: of the source.
        lines: `FIRST-LAST`; all where empty.
    """
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator, operator_names

    first, _, last = lines.partition("-")
    tree, written = get_ast_from_path(file), file.read_text(encoding="utf-8").splitlines()
    found = []
    for name in sorted(operator_names()):
        if UNSEEN in name or not name.partition("/")[2].startswith(CHANGES):
            continue
        operator, occurrence = get_operator(name)(), 0
        for node in ast_nodes(tree):
            for start, _ in operator.mutation_positions(node):
                if written[start[0] - 1].lstrip().startswith("@dataclass("):
                    pass  # slots and frozen records behave alike to whoever keeps to them
                elif not lines or int(first) <= start[0] <= int(last or first):
                    line, column = start
                    found.append(Mutation(file=file, operator=name, occurrence=occurrence, line=line, column=column))
                occurrence += 1
    return sorted(found, key=lambda one: (one.line, one.operator, one.occurrence))


def drawn(mutations: list[Mutation], most: int, seed: int) -> list[Mutation]:
    """One of each of so many places at most, the same ones for a seed."""
    places: dict[tuple[int, int], list[Mutation]] = {}
    for one in mutations:
        places.setdefault((one.line, one.column), []).append(one)
    chance = Random(seed)
    kept = chance.sample(sorted(places), min(most, len(places)))
    return [chance.choice(places[place]) for place in sorted(kept)]


def copied(folder: Path) -> Path:
    """The repository's files that tests need, in a folder where they may be changed."""
    for name in COPIED:
        source, ignored = ROOT / name, shutil.ignore_patterns("__pycache__")
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=ignored)
        else:
            shutil.copy(source, folder / name)
    return folder


def survives(place: Path, mutation: Mutation, tests: list[str], limit_s: float) -> bool:
    """Whether the tests pass with a mutation in the copy."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    source = mutation.file.read_text(encoding="utf-8")
    target = place / mutation.file.relative_to(ROOT)
    changed = mutate_code(source, get_operator(mutation.operator)(), mutation.occurrence)
    if changed is None:
        return False
    try:
        target.write_text(changed, encoding="utf-8")
        return passes(place, tests, limit_s)
    finally:
        target.write_text(source, encoding="utf-8")


def passes(place: Path, tests: list[str], limit_s: float | None) -> bool:
    """Whether tests pass in a copy, within a limit; what goes on for ever has been noticed."""
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(place / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        command, cwd=place, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            return process.wait(limit_s) == 0
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return False


if __name__ == "__main__":
    sys.exit(main())
