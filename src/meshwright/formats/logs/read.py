"""A log of any framework: named, or told by its first line about a step."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from meshwright.errors import InputError, Problem, UnsupportedError, unknown_name
from meshwright.formats.files import read_text
from meshwright.formats.logs import deepspeed, megatron, nemo, table, torchtitan, transformers
from meshwright.formats.logs.record import LoggedStep, Reading, RunLog

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
MAX_BYTES = 256 * 1024**2
_READERS = {
    "megatron": megatron,
    "nemo": nemo,
    "torchtitan": torchtitan,
    "deepspeed": deepspeed,
    "transformers": transformers,
    "csv": table,
}
FRAMEWORKS = tuple(_READERS)
_ALIASES = {
    "megatron-lm": "megatron",
    "megatron-core": "megatron",
    "megatron-bridge": "nemo",
    "huggingface": "transformers",
    "hf": "transformers",
}
SAME_UNIT = 30.0
"""Steps of one run do not differ by this much: milliseconds are among seconds."""


def read_log(path: str | Path, framework: str | None = None) -> RunLog:
    """The steps of a training log.

    Args:
        path: text as the framework printed it, of one or of all ranks.
        framework: of FRAMEWORKS; told by the log's lines where it is not given.

    Returns:
        Steps and what the run says about itself.

    Raises:
        InputError: no step is found, or lines are malformed or contradict each other, all problems together.
        UnsupportedError: an unknown framework.
    """
    wanted = None if framework is None else _ALIASES.get(framework.lower(), framework.lower())
    if wanted is not None and wanted not in _READERS:
        raise UnsupportedError(unknown_name("framework", framework or "", (*FRAMEWORKS, *_ALIASES)), code="MW403")
    text = _COLOURS.sub("", read_text(path, "training log", max_bytes=MAX_BYTES))
    # Only line feeds end lines here: a progress bar returns to the start of its own many times.
    lines = text.split("\n")
    name = wanted or told_by(lines)
    reading = Reading()
    if name is not None:
        _READERS[name].read(reading, lines)
    steps = tuple(step for step in reading.steps.values() if _says_something(step))
    problems = [*reading.problems, *_contradictions(steps)]
    if not steps and not problems:
        problems.append(_no_steps(path, wanted, len(lines)))
    if problems:
        raise InputError(problems[:10], code="MW216")
    assert name is not None
    return RunLog(framework=name, steps=steps, stated=tuple(reading.stated.items()))


def told_by(lines: list[str]) -> str | None:
    """The framework whose lines about steps the log has; NeMo and Megatron-DeepSpeed print Megatron's too."""
    seen = {name for name, reader in _READERS.items() if name != "csv" and any(map(reader.SIGNATURE.search, lines))}
    for name in ("nemo", "megatron", "torchtitan", "deepspeed", "transformers"):
        if name in seen:
            return name
    return "csv" if table.SIGNATURE.search(lines[0] if lines else "") else None


def _says_something(step: LoggedStep) -> bool:
    return any(value is not None for value in (step.step_time_s, step.tokens_per_s_per_device, step.samples_per_s))


def _no_steps(path: str | Path, framework: str | None, lines: int) -> Problem:
    said = f"lines of {framework}" if framework else f"lines about steps of {', '.join(FRAMEWORKS)}"
    return Problem(
        what=f"no step is found in {str(path)!r}",
        why=f"none of its {lines:,} lines is one of the {said}",
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
