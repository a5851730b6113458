"""A launch script as a plan to check, with what is wrong in its options."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from meshwright.errors import InputError, Problem, UnsupportedError, unknown_name
from meshwright.fields.job import JobFields
from meshwright.formats.files import read_text
from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.megatron import model_facts
from meshwright.formats.shell import read_script
from meshwright.planning.job_inputs import job_inputs
from meshwright.planning.plan_source import PlanQuestion, with_row
from meshwright.planning.violation import Violation
from meshwright.schedules.plan_rows import plan_of
from meshwright.specs.model import ModelSpec
from meshwright.targets import TARGETS, Target, readers

_SCRIPTS = (".sh", ".slurm", ".sbatch", ".bash", ".job")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What of a script's run its text does not say."""

    arguments: tuple[str, ...] | None = None
    """Its `$1` and on; None where nobody said them."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of the environment, by name."""


def script_question(
    source: str | os.PathLike[str], source_format: str, asked: JobFields, outside: Outside = Outside()
) -> tuple[PlanQuestion, list[Violation], LaunchFile]:
    """A launch script as a question, with what is wrong in its options, and what was read of it.

    Args:
        source: path, or text of several lines.
        source_format: a target that has a reader.
        asked: model, cluster and workload, before the script's own.
        outside: what the script's text does not say.

    Raises:
        InputError: the script says nothing that can be used, or no model is given.
        UnsupportedError: a format nobody reads.
    """
    if source_format not in readers():
        raise UnsupportedError(unknown_name("source", str(source_format)[:60], readers()), code="MW406")
    target = TARGETS[source_format]
    if asked.model is None:
        why = "a launch script gives shapes, not all of a model"
        raise InputError(Problem(what="no model is given", why=why, fix="name the model it trains", field="model"))
    where = job_inputs(
        JobFields(
            model=asked.model,
            cluster=asked.cluster,
            gpus=asked.gpus,
            calibration=asked.calibration,
        )
    )
    flags = _read(source, target, where.cluster.devices, outside)
    if flags.row is None and not flags.said and not flags.workload and flags.problems:
        raise InputError(flags.problems, code="MW231")
    own: dict[str, Any] = {
        key: flags.workload.get(key) for key in ("seq_len", "optimizer", "attention_kernel", "bf16_first", "bf16_last")
    }
    own["dtype"] = flags.workload.get("precision")
    if asked.global_batch is None and asked.tokens_per_step is None:
        own["global_batch"] = flags.workload.get("global_batch")
    own = {name: value for name, value in own.items() if getattr(asked, name) is None}
    inputs = job_inputs(replace(asked, **own, model=where.model, cluster=where.cluster, gpus=None))
    violations = [Violation.of("ASK", problem) for problem in flags.questions]
    violations += [Violation.of("OPTIONS", problem) for problem in flags.problems]
    violations += _shape_differs(inputs.model, flags.model)
    if flags.row is None:
        return PlanQuestion(inputs=inputs, row=None, plan=flags.plan, warnings=flags.notes), violations, flags
    batch = inputs.workload.global_batch
    if inputs.batch_given and batch != flags.row.gbs:
        what = f"the script runs {flags.row.gbs} sequences per step, {batch} are asked for"
        violations.append(Violation(code="OPTIONS", what=what, why="a step has one batch", field="--global-batch-size"))
    question = with_row(flags.row, inputs, flags.notes)
    uneven = question.plan is not None and flags.layout is not None and sum(flags.layout) == inputs.model.num_layers
    if uneven and flags.layout is not None:
        question = replace(question, plan=plan_of(flags.row, flags.layout))
    return question, violations, flags


def _read(source: str | os.PathLike[str], target: Target, devices: int, outside: Outside) -> LaunchFile:
    """The file as the target reads it: a bash script is first read as bash."""
    files = _files(source, target)
    name, text = next(iter(files.items()))
    shell = Path(name).suffix in _SCRIPTS or not name or text.startswith("#!")
    if target.script is not None and shell:
        folder = None if not name else Path(source).parent
        script = read_script(
            text,
            name=os.fspath(source) if name else "script",
            arguments=outside.arguments,
            environment=outside.environment,
            read=lambda path: _beside(path, folder),
        )
        return target.script(script, devices)
    if outside.arguments is not None or outside.environment:
        why = f"{name or 'the text'} is no bash script"
        raise InputError(Problem(what="--arg or --env is given", why=why, fix="leave it out", field="environment"))
    assert target.read is not None
    return target.read(files, devices)


def _beside(path: str, folder: Path | None) -> str | None:
    """The text of a script that another one runs, by its path or its name beside that one; None if there is none."""
    if folder is None or not path.strip():
        return None
    ways = [folder / path.lstrip("./"), folder / Path(path).name]
    ways = [Path(path), *ways] if path.startswith("/") else ways
    for way in ways:
        try:
            if way.is_file():
                return read_text(way, "sourced script")
        except (OSError, ValueError, InputError):
            continue
    return None


def _files(source: str | os.PathLike[str], target: Target) -> dict[str, str]:
    """A file, or text of several lines, with the files of its folder that say more of a plan."""
    if isinstance(source, str) and "\n" in source:
        return {"": source}
    path = Path(source)
    found = {path.name: read_text(path, "launch script")}
    for name in target.beside:
        if (path.parent / name).is_file() and name not in found:
            found[name] = read_text(path.parent / name, "launch file")
    return found


def _shape_differs(model: ModelSpec, said: dict[str, Any]) -> Iterator[Violation]:
    """Options that describe another model than the one named."""
    facts = model_facts(model)
    for name, value in said.items():
        if name in facts and facts[name] != value and value is not None:
            yield Violation(
                code="MODEL",
                what=f"the script's {name.replace('_', ' ')} is {value}",
                why=f"{model.name} has {facts[name]}",
                fix="name the model that the script trains, or correct the option",
                field=name,
            )
