"""The floors of the package in CONTRIBUTING.md, from the import contract: `python -m benchmarks.floors [--check]`."""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "meshwright"
PAGE = ROOT / "CONTRIBUTING.md"
START, END = "<!-- floors: make floors -->\n", "<!-- end of floors -->\n"


def layers() -> list[list[str]]:
    """Rooms of each floor, roof first, as the import contract has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = {contract["id"]: contract for contract in project["tool"]["importlinter"]["contracts"]}
    return [[name.strip(" ()") for name in layer.split("|")] for layer in contracts["floors"]["layers"]]


def purpose(room: str) -> str:
    """The first line of a room's docstring."""
    path = PACKAGE / room / "__init__.py"
    source = (path if path.exists() else PACKAGE / f"{room}.py").read_text()
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def table() -> str:
    """One row a room, one floor after the other."""
    rows = ["| floor | room | what is there |", "|---|---|---|"]
    for number, rooms in enumerate(reversed(layers())):
        rows += [f"| {number} | `{room}` | {purpose(room)} |" for room in rooms]
    return "\n".join([*rows[:2], *reversed(rows[2:])]) + "\n"


def written(page: str) -> str:
    """The page with its table made anew."""
    before, _, rest = page.partition(START)
    return before + START + "\n" + table() + "\n" + END + rest.partition(END)[2]


def main() -> int:
    """Write the table, or say whether it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the table is out of date")
    old = PAGE.read_text()
    new = written(old)
    if parser.parse_args().check:
        return int(new != old)
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
