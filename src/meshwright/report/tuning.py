"""Studies for the terminal: the best trial against the optimum, what became of the others, and tuners side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwright.report.parts import bullet, columns, heading, stopped_lines
from meshwright.report.words.sizing import of_things
from meshwright.units import seconds, significant

SHOWN = 5


def render_tune(document: Mapping[str, Any]) -> RenderableType:
    """The page of a `meshwright.tune/1`.

    Args:
        document: the answer as data.
    """
    parts: list[RenderableType] = [Text(_verdict(document), style="bold"), Text()]
    parts += [bullet(line) for line in _facts(document)]
    parts += stopped_lines(document)
    parts += [heading("Best trials"), _trial_table(document["trials"], document["optimum"])]
    reasons = Counter(_kind(row) for row in document["trials"] if row["reason"])
    if reasons:
        parts += [
            heading("Why the others are not ok"),
            *(bullet(f"{n} x {why}") for why, n in reasons.most_common(SHOWN)),
        ]
    return Group(*parts)


def render_tuners(document: Mapping[str, Any]) -> RenderableType:
    """The page of a `meshwright.tune-comparison/1`.

    Args:
        document: the answer as data.
    """
    optimum, search_s = document["optimum"], document["timing"]["search_s"]
    line = (
        f"{document['space']}: {_points(document)}, {document['budget']} trials each; "
        f"exact search: {seconds(optimum['value'])} in {seconds(search_s)}{_stopped(optimum)}"
    )
    table = columns("tuner", "regret", "best", "at 10", "at 30", "ok", "time", "per trial", left=("tuner",))
    table.add_row("exact search", "0%", seconds(optimum["value"]), "", "", "", seconds(search_s), "")
    for label, studies in grouped_studies(document).items():
        table.add_row(label, *_comparison_cells(studies, optimum["value"]))
    repeats = max(len(studies) for studies in grouped_studies(document).values())
    parts: list[RenderableType] = [Text(line, style="bold"), Text(), table, Text()]
    parts.append(bullet(f"the optimum is {optimum['name']}"))
    parts += [bullet(note) for note in document.get("notes", ())]
    fewest = min(study["count"] for study in document["studies"])
    if fewest < document["budget"]:
        parts.append(bullet(f"not all trials were made: at least {fewest:,} of a study"))
    parts += stopped_lines(document)
    parts.append(bullet("regret: how much worse the best trial is than the optimum; at N: after N trials"))
    if repeats > 1:
        parts.append(bullet(f"medians over {repeats} seeds"))
    parts += [bullet(f"left out: {entry['tuner']}, {entry['why']}") for entry in document["left_out"]]
    return Group(*parts)


def grouped_studies(document: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Studies of one tuner together, each with its own `timing`."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for study, timing in zip(document["studies"], document["timing"]["studies"], strict=True):
        found.setdefault(study["label"], []).append({**study, "timing": timing})
    return found


def best_after(study: Mapping[str, Any], trials: int) -> float | None:
    """The best value after so many trials, None if none was ok by then."""
    value = None
    for point in study["incumbents"]:
        if point["trials"] > trials:
            break
        value = point["value"]
    return value


def regret_percent(regret: float | None) -> str:
    """A regret as text: `0%`, `0.42%`, `13%`, `-` where unknown."""
    if regret is None or regret == float("inf"):
        return "-"
    value = 100.0 * regret
    return "0%" if value < 1e-7 else f"{significant(value, 2)}%"


def _comparison_cells(studies: Sequence[Mapping[str, Any]], optimum: float) -> list[str]:
    def regret(value: float | None) -> float:
        return float("inf") if value is None else max(0.0, value / optimum - 1.0)

    finals = [study["best"]["value"] if study["best"] else None for study in studies]
    known = [value for value in finals if value is not None]
    walls, counts = [study["timing"]["wall_s"] for study in studies], [study["count"] for study in studies]
    ok = sum(study["counts"].get("ok", 0) for study in studies) / max(1, sum(counts))
    return [
        regret_percent(median(regret(value) for value in finals)),
        seconds(median(known)) if known else "-",
        *(regret_percent(median(regret(best_after(study, trials)) for study in studies)) for trials in (10, 30)),
        f"{100 * ok:.0f}%",
        seconds(median(walls)),
        seconds(median(walls) / max(1, median(counts))),
    ]


def _verdict(document: Mapping[str, Any]) -> str:
    best, optimum = document["best"], document["optimum"]
    if best is None:
        return f"None of {of_things(document['count'], 'trial')} with {document['label']} is ok."
    made = f"{of_things(document['count'], 'trial')} with {document['label']}"
    text = f"{best['name']}: {seconds(best['value'])}, the best of {made}"
    if not optimum:
        return f"{text}."
    known = "the best that the exact search had found" if "stopped" in optimum else "the optimum"
    where = "above" if document["regret"] >= 0 else "below"
    return f"{text}, {regret_percent(abs(document['regret']))} {where} {known}."


def _stopped(optimum: Mapping[str, Any]) -> str:
    """Clause that a better trial may exist where the exact search ended at a limit; of time it has half the limit."""
    if "stopped" not in optimum:
        return ""
    limit = optimum["stopped"]
    return f"; it stopped at {'half of the' if limit.startswith('time') else 'the'} {limit}, so better may be left"


def _named(document: Mapping[str, Any]) -> str:
    """What is minimised, in words: `step_time_s` is `step time`."""
    return str(document["objective"]).removesuffix("_s").replace("_", " ")


def _points(document: Mapping[str, Any], kind: str = "") -> str:
    """How many there are: `206,392 points`."""
    size = f"{document['size']:,} {kind}points"
    return f"the part of the space with {size}" if document.get("partial") else size


def _facts(document: Mapping[str, Any]) -> list[str]:
    counts = ", ".join(f"{count} {status}" for status, count in document["counts"].items())
    facts = [f"{document['space']}: {_points(document, 'legal ')}, searched for the least {_named(document)}"]
    optimum, search_s = document["optimum"], document["timing"]["search_s"]
    if optimum:
        facts.append(
            f"exact search: {optimum['name']}, {seconds(optimum['value'])}, in {seconds(search_s)}{_stopped(optimum)}"
        )
    timing = document["timing"]["studies"][0]
    took = f"{seconds(timing['wall_s'])}, of which {seconds(timing['priced_s'])} to price"
    resumed = f"; {document['resumed']} trials are of earlier runs" if document["resumed"] else ""
    of = f" of {document['budget']:,}" if document["count"] < document["budget"] else ""
    return [*facts, f"trials{of}: {counts}; {took}{resumed}", *document.get("notes", ())]


def _trial_table(rows: Sequence[Mapping[str, Any]], optimum: Mapping[str, Any] | None) -> Table:
    table = columns("trial", "value", *(["regret"] if optimum else []), "point", fold=("point",))
    good = sorted((row for row in rows if row["status"] == "ok"), key=lambda row: (row["value"], row["trial"]))
    seen: set[str] = set()
    for row in good:
        if row["name"] in seen or len(seen) == SHOWN:
            continue
        seen.add(row["name"])
        regret = [regret_percent(row["value"] / optimum["value"] - 1.0)] if optimum else []
        table.add_row(str(row["trial"]), seconds(row["value"]), *regret, Text(row["name"], overflow="fold"))
    return table


def _kind(row: Mapping[str, Any]) -> str:
    """Status and reason of a trial without its own numbers: what stands before the colon, for an error all of it."""
    reason: str = row["reason"]
    return f"{row['status']}: {reason[:100] if row['status'] == 'error' else reason.partition(':')[0]}"
