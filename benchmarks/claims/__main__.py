"""Writes docs/claims.md: `make claims`, or `python -m benchmarks.claims [--system NAME] [--cases FILE --profiles DIR]`.

With `--system` the rows of one system are printed instead. Rows against Sailor and Metis need Sailor's cases and layer
profiles (`benchmarks.hetero`); without them the page keeps the rows that it has.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import fill

from benchmarks import DOCS, markdown_table, write_page
from benchmarks.claims import calculon_values, memory, pipelines, planners, tensors
from benchmarks.claims.claim import KNOWN, Answer, Claim, Outcome, outcome

PAGE = "claims.md"
HEADINGS = ("", "system", "claim", "published", "ours", "verdict", "setting", "why", "source")
VERDICTS = ("reproduced", "in part", "not")
INTRODUCTION = (
    "What the authors of the catalogued systems claim, and what the tree says of it: one row per number, written by "
    "`make claims`. *Reproduced* is a number within 10% of the published one (where a row says no other), or above it "
    "where the claim is a floor. *In part* is a gain of another size. *Not* is everything else, a claim about which "
    "nothing can be computed here included; *why* says what is in the way. Settings name what the published number was "
    "measured on, and after *here* what stands for it: few papers publish their lengths, loads or links. Below each "
    "table stand the commands of its rows; a ratio is the throughput of the last over that of the first. Publications "
    "were " + ", ".join(f"{meaning} [{tag}]" for tag, meaning in KNOWN.items()) + "."
)


def sections(cases: Answer | None) -> Iterable[tuple[str, list[Claim]]]:
    """Titles and claims of the page.

    Args:
        cases: figures by Sailor's profiles; None where there are none.
    """
    yield "Pipelines", list(pipelines.claims())
    yield "Tensors, sequences, experts", list(tensors.claims())
    yield "Data parallelism, memory", list(memory.claims())
    yield "Planners", list(planners.claims(cases))
    yield "Calculon's validation", list(calculon_values.claims())


def cells(number: int, found: Outcome) -> tuple[str, ...]:
    """One row of a table.

    Args:
        number: of the row on the page.
        found: the claim with ours.
    """
    claim = found.claim
    ours = "" if found.ours is None else said(found.ours, claim.unit)
    why = "" if found.verdict == "reproduced" else claim.why
    source = f"{claim.source} [{claim.known}]"
    published = said(claim.published, claim.unit)
    return (str(number), claim.system, claim.says, published, ours, found.verdict, claim.setting, why, source)


def said(number: float, unit: str) -> str:
    """A number with its unit: `1.29x`, `33.3%`, `yes`."""
    if unit == "fits":
        return "yes" if number else "no"
    value = f"{number:.4g}" if abs(number) >= 100 else f"{number:.3g}"
    return value + (unit if unit in {"x", "%"} else f" {unit}")


def page(cases: Answer | None, before: str) -> str:
    """The whole page.

    Args:
        cases: figures by Sailor's profiles, or None.
        before: the page as it is, whose rows stay where their files are not at hand.
    """
    number, parts, verdicts = 0, [], Counter[str]()
    for title, claims in sections(cases):
        rows, commands = [], []
        for claim in claims:
            number += 1
            row = cells(number, outcome(claim))
            if claim.from_files and cases is None:
                row = (str(number), *kept(claim, before, row)[1:])
            verdicts[row[HEADINGS.index("verdict")]] += 1
            rows.append(row)
            commands += [f"{number:>3}  {command}" for command in claim.shown_commands()]
        block = "\n".join(["```text", *commands, "```"])
        parts.append(f"## {title}\n\n{markdown_table(HEADINGS, rows).replace('---:', '---')}\n\n{block}")
    summary = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in VERDICTS)
    head = f"# Claims\n\n{fill(INTRODUCTION, 120)}\n\nOf {number} rows: {summary}.\n\n"
    return head + "\n\n".join(parts) + "\n"


def kept(claim: Claim, before: str, row: tuple[str, ...]) -> tuple[str, ...]:
    """The row of the page before that makes the same claim; the new one where there is none."""
    return next((one for one in rows_of(before) if one[1:3] == (claim.system, claim.says)), row)


def rows_of(text: str) -> list[tuple[str, ...]]:
    """The cells of every row of a page's tables, without headings.

    Args:
        text: of the page.
    """
    lines = [line.strip().strip("|") for line in text.splitlines() if line.startswith("| ")]
    found = [tuple(cell.strip() for cell in line.split(" | ")) for line in lines]
    return [row for row in found if row[0].isdigit()]


def by_profiles(cases: Path, profiles: Path) -> Answer:
    """Ours against Sailor's and Metis' plans, by Sailor's simulator: the figures that `planners` names."""
    from math import prod

    from benchmarks.hetero import planned_s
    from meshwright.formats.profiles import read_profiles

    read = read_profiles(profiles)
    over_sailor, over_both = [], []
    for case in json.loads(cases.read_text(encoding="utf-8"))["cases"]:
        step_s = planned_s(read, case)
        sailor = case["sailor"]["best_of_list_by_simulator"]["sailor_simulator_s"]
        metis = case["metis"]["best_uniform_by_sailor_simulator"]["sailor_simulator_s"]
        over_sailor.append(step_s / sailor)
        over_both.append(min(sailor, metis) / step_s)
    return {"Tangram": max(over_both), "Sailor": prod(over_sailor) ** (1 / len(over_sailor))}


def main(words: Sequence[str] | None = None) -> int:
    """Write the page, or print the rows of one system."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims", description=__doc__)
    parser.add_argument("--system", metavar="NAME", help="print the rows of one system, as the page names it")
    parser.add_argument("--cases", type=Path, metavar="FILE", help="mixed clusters with the plans of Sailor and Metis")
    parser.add_argument(
        "--profiles", type=Path, metavar="DIR", help="the layer profiles that those plans were made with"
    )
    options = parser.parse_args(words)
    cases = by_profiles(options.cases, options.profiles) if options.cases and options.profiles else None
    if options.system:
        rows = [
            cells(number, outcome(claim))
            for number, claim in enumerate((one for _, claims in sections(cases) for one in claims), 1)
            if claim.system == options.system
        ]
        print(markdown_table(HEADINGS, rows) if rows else f"no row is of {options.system}")
        return 0 if rows else 2
    path = DOCS / PAGE
    print(write_page(PAGE, page(cases, path.read_text(encoding="utf-8") if path.is_file() else "")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
