"""The page of docs that says what becomes of the corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

HEAD = """# Training steps that run

What becomes of {cases} training steps, written as the users of their libraries write them (`tests/corpus`), with one
line above each: `make corpus` runs every one for five steps on eight devices under six methods, in numbers of 64 bits,
and compares state and results with one device, to 1e-9 of the largest entry of each array (or of 0.1); 1e-5 where the
library computes with 32 bits whatever it is given, 1e-2 where the step does with 16. Three of the methods split the
batch into two micro-batches.

| | of {rows} |
|---|---|
{totals}

**staged**: cut at its gradient, with micro-batches and stages as asked. **whole**: in one piece, without micro-batches,
which the step's `explain()` says. **undivided**: staged, with the batch in one piece, as micro-batches would compute
something else. **refused**: with the reason below.

"""

LIBRARIES = {
    "jax": "JAX alone", "optax": "Optax", "chex": "Chex", "linen": "Flax Linen", "nnx": "Flax NNX",
    "equinox": "Equinox", "haiku": "Haiku",
}  # fmt: skip
UNDIVIDED = "runs without its "
"""How the note begins of a step whose micro-batches were left out."""
WORDS = ("staged", "whole", "undivided", "refused", "differs", "crashes")
OTHERS = "Several gradients, reinforcement learning"


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """The page.

    Args:
        rows: of the table.
    """
    words = [_word(row) for row in rows]
    counts = Counter(words)
    totals = "\n".join(f"| {word} | {counts[word]} |" for word in WORDS)
    methods = list(dict.fromkeys(row["method"] for row in rows))
    cases = list(dict.fromkeys(row["case"] for row in rows))
    lines = [HEAD.format(cases=len(cases), rows=len(rows), totals=totals)]
    of = {(row["case"], row["method"]): word for row, word in zip(rows, words, strict=True)}
    groups: dict[str, list[str]] = {title: [] for title in [*LIBRARIES.values(), OTHERS]}
    for case in cases:
        groups[LIBRARIES.get(case.split("_")[0], OTHERS)].append(case)
    for title, own in groups.items():
        if not own:
            continue
        lines.append(f"## {title}\n")
        lines.append("| step | " + " | ".join(name.removesuffix("Parallel") for name in methods) + " |")
        lines.append("|---" * (len(methods) + 1) + "|")
        for case in own:
            said = [of.get((case, method), "") for method in methods]
            name = case.removeprefix(case.split("_")[0] + "_") if case.split("_")[0] in LIBRARIES else case
            lines.append(f"| {name.replace('_', ' ')} | " + " | ".join(said) + " |")
        lines.append("")
    refused = [(row["case"], row["note"]) for row in rows if row["outcome"] == "refused"]
    if refused:
        lines.append("## Refused\n")
        lines.append("| step | reason |\n|---|---|")
        lines += [f"| {case.replace('_', ' ')} | {_cell(note)} |" for case, note in dict.fromkeys(refused)]
    return "\n".join(lines).rstrip() + "\n"


def _word(row: Mapping[str, Any]) -> str:
    if row["outcome"] != "runs":
        return str(row["outcome"])
    if row["note"].startswith(UNDIVIDED):
        return "undivided"
    return "whole" if row["note"].startswith("runs whole") else "staged"


def _cell(note: str) -> str:
    return note.replace("|", "\\|").replace("\n", " ")
