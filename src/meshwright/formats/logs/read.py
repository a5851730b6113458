"""A log of any framework: named, or recognised by its lines about steps."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from meshwright.errors import InputError, Problem, UnsupportedError, unknown_name
from meshwright.formats.files import read_text
from meshwright.formats.logs.record import LoggedStep, LogReader, LogReading, RunLog, steady_terms

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
MAX_BYTES = 256 * 1024**2
SAME_UNIT = 30.0
"""Steps of one run do not differ by this much: milliseconds are among seconds."""


def read_with(readers: tuple[LogReader, ...], path: str | Path, framework: str | None = None) -> RunLog:
    """The steps of a training log.

    Args:
        readers: those to choose from; of several that recognise a log, the first.
        path: text as the framework printed it, of one or of all ranks.
        framework: name or alias of a reader; recognised by the log's lines if not given.

    Returns:
        Steps and what the run says about itself.

    Raises:
        InputError: no step is found, or lines are malformed or contradict each other, all problems together.
        UnsupportedError: an unknown framework.
    """
    wanted = None if framework is None else _named(readers, framework)
    text = _COLOURS.sub("", read_text(path, "training log", max_bytes=MAX_BYTES))
    # Only line feeds end lines here: a progress bar returns to the start of its own many times.
    lines = text.split("\n")
    reader = wanted or next((one for one in readers if one.recognises(lines)), None)
    reading = LogReading()
    if reader is not None:
        reader.read(reading, lines)
    steps = tuple(step for step in reading.steps.values() if _measures(step))
    problems = [*reading.problems, *_contradictions(steps)]
    if not steps and not problems:
        problems.append(_no_steps(path, (wanted,) if wanted else readers, len(lines) - (not lines[-1])))
    if problems:
        raise InputError(problems[:10], code="MW216")
    assert reader is not None
    return RunLog(
        framework=reader.name,
        steps=steps,
        stated=tuple(reading.stated.items()),
        terms=steady_terms(reading.terms),
    )


def _named(readers: tuple[LogReader, ...], framework: str) -> LogReader:
    for reader in readers:
        if framework.lower() in (reader.name, *reader.aliases):
            return reader
    known = [name for reader in readers for name in (reader.name, *reader.aliases)]
    raise UnsupportedError(unknown_name("framework", framework, known), code="MW403")


def _measures(step: LoggedStep) -> bool:
    return any(value is not None for value in (step.step_time_s, step.tokens_per_s_per_device, step.samples_per_s))


def _no_steps(path: str | Path, readers: tuple[LogReader, ...], lines: int) -> Problem:
    names = ", ".join(reader.name for reader in readers)
    return Problem(
        what=f"no step is found in {str(path)!r}",
        why=f"none of its lines ({lines:,}) reports a step as {names} does",
        fix="give the log of the rank that prints, or a CSV with the columns step,step_time_s",
        field="steps",
    )


def _contradictions(steps: tuple[LoggedStep, ...]) -> list[Problem]:
    """Times of two units, and batches that change."""
    problems = []
    times = sorted((step.step_time_s, step.line) for step in steps[1:] if step.step_time_s is not None)
    if times:
        typical = times[len(times) // 2][0]
        odd = [(time_s, line) for time_s, line in times if not typical / SAME_UNIT < time_s < typical * SAME_UNIT]
        # A checkpoint or a restart makes one step long, not many; and none makes one short.
        if (len(odd) > 1 and len(odd) > 0.05 * len(times)) or any(time_s < typical for time_s, _ in odd):
            time_s, line = odd[0]
            problems.append(
                Problem(
                    what=f"line {line}: a step of {time_s:.4g} s among steps of {typical:.4g} s",
                    why="steps of one run do not differ that much: these are two units, or two runs",
                    fix="give one run, in one unit",
                    field="step_time",
                )
            )
    batches = Counter(step.global_batch for step in steps if step.global_batch is not None)
    if len(batches) > 1:
        usual = batches.most_common(1)[0][0]
        other = next(step for step in steps if step.global_batch not in (None, usual))
        problems.append(
            Problem(
                what=f"line {other.line}: a global batch of {other.global_batch}, elsewhere {usual}",
                why="steps of different batches are different work",
                fix="give the lines of one batch (leave the batch ramp-up out)",
                field="global_batch",
            )
        )
    return problems
