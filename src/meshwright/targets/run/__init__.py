"""The runtime of this package: a script that starts `run` with the plan, and the plan file beside it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from meshwright.errors import MeshwrightError, Problem, UnsupportedError
from meshwright.estimate.layout import expand
from meshwright.estimate.result import StepEstimate
from meshwright.formats.launch_file import LaunchFile, Said
from meshwright.formats.plan_json import read_job
from meshwright.formats.shell import Script, ScriptLine, Unknown, Word, read_script
from meshwright.formats.shell.values import known_text, literal
from meshwright.library import models
from meshwright.schedules import known_names
from meshwright.schedules.plan_rows import row_of
from meshwright.specs.job import Job
from meshwright.specs.precision import PRECISIONS
from meshwright.specs.row import PlanRow
from meshwright.specs.row_of import homogeneous
from meshwright.specs.row_text import parse_row
from meshwright.specs.workload import Workload
from meshwright.targets.contract import (
    PLAN_FILE,
    Files,
    JobTarget,
    TargetFiles,
    marked,
    one_line,
    target_files,
    text_beside,
    text_of,
)
from meshwright.targets.run.rules import unrunnable_settings

SCRIPT = "run.sh"
_COMMANDS = (["meshwright", "run"], ["-m", "meshwright", "run"])


def _refused(job: Job) -> tuple[Problem, ...]:
    # A plan of unlike stages has no row; `run` takes its file.
    row = row_of(job.plan, job.model)
    found = () if row is None else tuple(unrunnable_settings(row))
    return (*found, _LENGTHS) if job.workload.sequence_lengths else found


_LENGTHS = Problem(
    what="lengths of sequences",
    why="a row is one sequence of --seq tokens",
    fix="leave --lengths out",
    field="lengths",
)


def _files(job: Job, estimate: StepEstimate) -> TargetFiles:
    if problems := _refused(job):
        raise UnsupportedError(problems, code="MW420")
    row = row_of(job.plan, job.model)
    if row is not None and not _said_by(row, job):
        row = None
    said = PLAN_FILE if row is None else row.format()
    words = ["meshwright", "run", "--plan", said, "--seq", str(job.workload.seq_len)]
    if row is not None:
        words[2:2] = [job.model.name]
        words += ["--devices", str(row.devices)]
    lines = [
        "#!/usr/bin/env bash",
        f"# {one_line(job.model.name)} on {job.plan.devices} devices; on a small one add --layers, --hidden, --vocab",
        "set -euo pipefail",
        f'{shlex.join(words)} "$@"',
        "",
    ]
    return target_files(job, ((SCRIPT, "\n".join(lines)),), notes=(), start=f"bash {SCRIPT} --steps 20")


def _said_by(row: PlanRow, job: Job) -> bool:
    """Whether a plan of one line, its model's name and its sequence length say all of a job."""
    workload, known = job.workload, models.find_name(job.model.name)
    usual = Workload(seq_len=workload.seq_len, global_batch=workload.global_batch, software=workload.software)
    same = known is not None and models.spec(known) == job.model and usual == workload
    spread, found = (homogeneous(one, unevenly=True)[0] for one in (expand(row, job.model, workload.seq_len), job.plan))
    return same and spread is not None and found is not None and spread.layers == found.layers


_recognised = marked((".sh",), ("meshwright run",))


def _read(files: Files, devices: int | None = None) -> LaunchFile:
    script = read_script(text_of(files, SCRIPT, _recognised), name=SCRIPT)
    plan = text_beside(files, PLAN_FILE)
    return _script(
        script
        if plan is None
        else replace(script, files={PLAN_FILE: literal(plan, ScriptLine(PLAN_FILE, 1)), **script.files}),
        devices,
    )


def _script(script: Script, devices: int | None = None) -> LaunchFile:
    """A script that starts `run` once with a plan of one line."""
    found = [words for command in script.commands if (words := _behind(command.words)) is not None]
    if len({tuple(one.text for one in words) for words in found}) != 1:
        why = "it starts `meshwright run` never, or several times with different options"
        return LaunchFile(row=None, layout=None, problems=(Problem(what="there is no one run", why=why),))
    values: dict[str, Word] = {}
    for at, one in enumerate(found[0]):
        name, equals, _ = one.text.partition("=")
        if name.startswith("--"):
            values[name] = one if equals else found[0][at + 1] if at + 1 < len(found[0]) else one
    said = tuple(
        Said(option=name, value=one.text.rpartition("=")[2], place=str(one.place or ""))
        for name, one in values.items()
        if name in ("--plan", "--seq", "--gbs", "--devices", "--dtype")
    )
    given = {one.option: one.value for one in said}
    numbers = {name: int(text) for name, text in given.items() if text.isdigit()}
    line = given.get("--plan", "")
    if line.endswith(".json") or "/" in line:
        return _of_file(line, script, said)
    wrong = tuple(
        Problem(what=f"{name} is {given[name]!r:.40}", why="must be a whole number of at least 1", field=name)
        for name in ("--seq", "--gbs", "--devices")
        if given.get(name) and numbers.get(name, 0) < 1
    )
    world = devices or numbers.get("--devices") or 1
    batch = numbers.get("--gbs") or next((int(part[3:]) for part in line.split(".") if _BATCH.fullmatch(part)), 0)
    questions = [
        Problem(what=f"{name} is not known", why=f"{one.unknown.why} ({one.unknown.place})", fix=_ways(one.unknown))
        for name, one in values.items()
        if one.unknown is not None and name in given
    ]
    if not batch:
        fix = "write it in --plan as gbsN, or --gbs N"
        questions.append(Problem(what="the batch is not known", why="neither --plan nor --gbs says it", fix=fix))
    if questions:
        return LaunchFile(row=None, layout=None, said=said, questions=tuple(questions))
    try:
        row = parse_row(line, devices=world, global_batch=batch, schedules=known_names())
    except MeshwrightError as error:
        return LaunchFile(row=None, layout=None, said=said, problems=tuple(error.problems))
    words = found[0]
    first = words[0].text if words and not words[0].text.startswith("-") and words[0].unknown is None else ""
    named = {"name": first} if models.find_name(first) else {}
    workload: dict[str, Any] = {"global_batch": row.gbs}
    workload |= {"seq_len": numbers["--seq"]} if "--seq" in numbers else {}
    dtype = given.get("--dtype", "")
    if dtype and dtype not in PRECISIONS:
        problem = Problem(what=f"--dtype is {dtype[:40]}", why=f"{', '.join(PRECISIONS)} can be planned")
        return LaunchFile(row=None, layout=None, said=said, problems=(problem,))
    workload |= {"precision": PRECISIONS[dtype]} if dtype else {}
    problems = (*wrong, *unrunnable_settings(row))
    started = numbers.get("--devices") or None
    read = LaunchFile(row=row, layout=None, model=named, said=said, workload=workload, problems=problems)
    note = f"the script starts {started} processes, the plan is read for {world} devices"
    return replace(read, started=started, notes=(note,) if started not in (None, world) else ())


def _of_file(path: str, script: Script, said: tuple[Said, ...]) -> LaunchFile:
    """The job of a plan file that a script starts."""
    text = script.files.get(PurePath(path).name)
    if text is None:
        problem = Problem(what=f"{path[:80]} is not here", why="it is the plan", fix="check it beside its plan file")
        return LaunchFile(row=None, layout=None, said=said, questions=(problem,))
    try:
        job = read_job(known_text(text)).job
    except MeshwrightError as error:
        return LaunchFile(row=None, layout=None, said=said, problems=tuple(error.problems))
    row, found = row_of(job.plan, job.model), homogeneous(job.plan, unevenly=True)[0]
    workload = {
        "global_batch": job.workload.global_batch,
        "seq_len": job.workload.seq_len,
        "precision": job.workload.precision,
        "optimizer": job.workload.optimizer,
        "attention_kernel": job.workload.attention_kernel,
        "loss_tiles": job.workload.loss_tiles,
        "mlp_tiles": job.workload.mlp_tiles,
        "software": job.workload.software,
    }
    layout = found.layers if row is not None and found is not None else None
    problems = () if row is None else tuple(unrunnable_settings(row))
    plan = None if row is not None else job.plan
    read = LaunchFile(row=row, layout=layout, plan=plan, spec=job.model, said=said, workload=workload)
    return replace(read, problems=problems)


_BATCH = re.compile(r"gbs\d{1,9}")


def _ways(unknown: Unknown) -> str:
    ways = [f"--arg (argument {name})" if name.isdigit() else f"--env {name}=VALUE" for name in unknown.names[:3]]
    return f"give {' or '.join(ways)}" if ways else "write the value into the script"


def _behind(words: Sequence[Word]) -> list[Word] | None:
    """Words of a command behind `meshwright run`; None where it is another command."""
    texts = [one.text for one in words]
    for start in _COMMANDS:
        for at in range(len(texts) - len(start)):
            if texts[at : at + len(start)] == start:
                return list(words[at + len(start) :])
    return None


TARGET = JobTarget(
    name="run",
    title="the runtime of this package",
    vendors=None,  # whatever JAX has devices of
    version="this release",
    translate=_files,
    refusals_of=_refused,
    read=_read,
    script=_script,
    recognised=_recognised,
    beside=(PLAN_FILE,),
    suggested=False,
)
