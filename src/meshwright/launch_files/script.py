"""A launch script as a plan to check, with what is wrong in its options."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwright.errors import InputError, Problem, UnsupportedError, unknown_name
from meshwright.fields.job import JobFields
from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.megatron import model_facts
from meshwright.formats.megatron.read import DEVICES
from meshwright.launch_files.fused_loss import with_pieces
from meshwright.launch_files.model import model_trained, with_stored_weights
from meshwright.launch_files.plan_beside import PlanBeside
from meshwright.launch_files.source import NOTHING_OUTSIDE, SCRIPT_RECORDS, LaunchSource, Outside
from meshwright.launch_files.violation import Violation
from meshwright.launch_files.workload import usable
from meshwright.library import models
from meshwright.library.calibration import calibration as calibration_of
from meshwright.planning.for_target import software_with
from meshwright.planning.plan_question import PlanQuestion
from meshwright.planning.plan_source import with_row
from meshwright.planning.question.job_inputs import JobInputs, job_inputs, resolve_cluster, resolve_model
from meshwright.planning.question.tuned import with_targets_there
from meshwright.planning.question.tuning_text import read_lora
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.optimizers import optimizer_named
from meshwright.specs.precision import Precision
from meshwright.specs.row import PlanRow
from meshwright.targets import TARGETS, TRAINERS, Target, readers


def script_question(
    source: str | os.PathLike[str], source_format: str, asked: JobFields, outside: Outside = NOTHING_OUTSIDE
) -> tuple[PlanQuestion | None, list[Violation], LaunchFile, LaunchSource]:
    """A launch script as a question, with what is wrong in its options, what was read, and from what.

    Args:
        source: path, or text of several lines.
        source_format: a target that has a reader.
        asked: model, cluster and workload, before the script's own.
        outside: what the script's text does not say.

    Returns:
        The question is None where model or cluster are asked for: then the questions of what was read say so.

    Raises:
        InputError: the script says nothing that can be used.
        UnsupportedError: a format nobody reads.
    """
    if source_format not in SCRIPT_RECORDS:  # `trl` is a form of a script here, and a name of its target there
        source_format = TRAINERS.canonical(TARGETS.canonical(source_format))
    if source_format not in (*readers(), *TRAINERS, *SCRIPT_RECORDS):
        known = (*readers(), *TRAINERS, *SCRIPT_RECORDS)
        raise UnsupportedError(unknown_name("source", str(source_format)[:60], known), code="MW406")
    whole = asked.model is not None and (asked.cluster is not None or asked.gpus is not None)
    beside = None if whole else PlanBeside.of(source)
    asked, notes = (asked, ()) if beside is None else beside.on_its_cluster(asked)
    model, cluster = nouns(asked)
    launch = LaunchSource.of(source, source_format, None if cluster is None else cluster.devices, outside)
    flags = launch.read()
    flags, which = replace(flags, notes=(*flags.notes, *notes)), None
    if cluster is None:
        flags, which = _for_devices(launch, flags)
    flags = usable(with_stored_weights(flags))
    if flags.row is None and not flags.said and not flags.workload and not flags.questions and flags.problems:
        raise InputError(flags.problems, code="MW231")
    asks = [*flags.questions, *([which] if which is not None else [])]
    if model is None:
        model, open_model = model_trained(flags, f"model of {Path(launch.name).name or 'the script'}")
        # Each job, function and recipe has a model of its own.
        known_open = any(one.field in ("model", "job", "config", "recipe") for one in asks)
        if open_model is not None and beside is not None and not known_open:
            model, open_model = beside.model, None
            asked, flags = replace(asked, model=model), replace(flags, notes=(*flags.notes, beside.of_the_model))
        asks += [open_model] if open_model is not None and not known_open else []
    if model is None or cluster is None:
        flags = replace(flags, questions=tuple(dict.fromkeys(asks)))
        violations = [Violation.of("OPTIONS", problem) for problem in flags.problems]
        violations += [Violation.of("ASK", problem) for problem in flags.questions]
        return None, violations, flags, launch
    if beside is not None and asked.seq_len is None and not asked.lengths and flags.workload.get("seq_len") is None:
        asked, note = beside.of_its_length(asked)
        flags = replace(flags, notes=(*flags.notes, note))
    flags, inputs = _with_inputs(flags, launch.target, asked, model, cluster)
    violations = [Violation.of("ASK", problem) for problem in flags.questions]
    violations += [Violation.of("OPTIONS", problem) for problem in flags.problems]
    if asked.model is not None or "name" in flags.model:  # else the options describe it themselves
        violations += shape_differs(inputs.model, flags.model)
    violations += _name_differs(inputs.model, flags.model.get("name"))
    if flags.row is None:
        question = PlanQuestion(inputs=inputs, row=None, plan=flags.plan, warnings=flags.notes)
        return question, violations, flags, launch
    flags, question, of_row = _of_row(flags, flags.row, inputs)
    return question, violations + of_row, flags, launch


def _with_inputs(
    flags: LaunchFile, target: Target, asked: JobFields, model: ModelSpec, cluster: ClusterSpec
) -> tuple[LaunchFile, JobInputs]:
    """A file with notes on what it leaves open, and its job: what is asked first, then what the file says."""
    notes: list[str] = []
    if asked.model is None:
        how = f"the model is {model.name}" if "name" in flags.model else "no model is named: the options describe one"
        notes += [f"{how} of {model.parameters:,} parameters", *model.notes]
    own: dict[str, Any] = {key: flags.workload.get(key) for key in _OF_WORKLOADS}
    own["dtype"] = _states_of(flags)
    if own["lora"] is not None and not model.streams:
        own["lora"], absent = with_targets_there(model, own["lora"])
        notes += [f"{model.name} has no {', '.join(absent)}, which adapters are meant for"] if absent else []
    if own["lora"] is not None:
        own["lora"] = target.adapted(model, read_lora(own["lora"]))
    own["software"] = flags.workload.get("software", target.software)
    if own["software"] is not None and (lora := asked.lora or own["lora"]) is not None:
        own["software"] = software_with(own["software"], read_lora(lora).base)
    if asked.global_batch is None and asked.tokens_per_step is None:
        own["global_batch"] = flags.workload.get("global_batch")
    own = {name: value for name, value in own.items() if getattr(asked, name) is None}
    inputs = job_inputs(replace(asked, **own, model=model, cluster=cluster, gpus=None))
    stated = asked.seq_len is not None or own.get("seq_len") is not None or bool(asked.lengths)
    if not stated and not inputs.model.pooled and not flags.questions:  # what is asked for may say it
        length = inputs.workload.seq_len
        notes.append(f"the file states no sequence length: {length:,} tokens are assumed; --seq sets another")
    flags = replace(flags, notes=(*flags.notes, *notes))
    return with_pieces(flags, inputs) if asked.loss_tiles is None else (flags, inputs)


def _of_row(flags: LaunchFile, row: PlanRow, inputs: JobInputs) -> tuple[LaunchFile, PlanQuestion, list[Violation]]:
    """The file with its stages, the question that its degrees ask of its job, and what does not go together."""
    violations = []
    batch = inputs.workload.global_batch
    if inputs.batch_given and batch != row.gbs:
        what = f"the script runs {row.gbs} sequences per step, {batch} are asked for"
        violations.append(Violation(code="OPTIONS", what=what, why="a step has one batch", field="--global-batch-size"))
    if row.ep_overlap == "shared" and not any(
        getattr(kind.mlp, "shared_ffn_hidden", 0) for kind in inputs.model.kinds()
    ):
        row = replace(row, ep_overlap="none")  # a switch of the program that this model leaves without effect
        note = f"{inputs.model.name} has no shared experts: nothing of them overlaps its exchanges"
        flags = replace(flags, row=row, notes=(*flags.notes, note))
    flags, undealt = _with_stages(flags, inputs.model)
    layout, violations = flags.layout, violations + undealt
    if layout is not None and len(set(layout)) > 1:
        flags = replace(flags, notes=(*flags.notes, f"layers of the pipeline's stages: {_listed(layout)}"))
    whole = layout is not None and sum(layout) == inputs.model.num_layers
    question = with_row(row, inputs, flags.notes, layout if whole else None)
    if question.plan is None or layout is None or whole:
        return flags, question, violations
    what = f"the pipeline stages of the file hold {sum(layout)} layers"
    why = f"{inputs.model.name} has {inputs.model.num_layers}"
    violations.append(Violation(code="MODEL", what=what, why=why, fix="name the model that it trains", field="pp"))
    return flags, question, violations


def _listed(counts: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, counts[:24]))
    return shown if len(counts) <= 24 else f"{shown}, ... {counts[-1]}"


def _with_stages(flags: LaunchFile, model: ModelSpec) -> tuple[LaunchFile, list[Violation]]:
    """A file with the layers of its stages for a model, and why the framework deals it none."""
    if flags.layout is not None or flags.dealt is None:
        return flags, []
    try:
        return replace(flags, layout=flags.dealt(model.num_layers)), []
    except InputError as error:
        return flags, [Violation.of("OPTIONS", problem) for problem in error.problems]


_OF_WORKLOADS = (
    *("seq_len", "optimizer", "attention_kernel", "loss_tiles", "mlp_tiles", "bf16_first", "bf16_last", "lora"),
)


def _states_of(flags: LaunchFile) -> Precision | None:
    """Number formats of a file, without that of moments where its optimizer has one of its own."""
    precision, optimizer = flags.workload.get("precision"), flags.workload.get("optimizer")
    if precision is None or optimizer is None or not optimizer_named(optimizer).own_formats:
        return precision
    return replace(precision, moments="fp32")


def nouns(asked: JobFields) -> tuple[ModelSpec | None, ClusterSpec | None]:
    """The model and the cluster, each None where nobody names it.

    Raises:
        InputError, UnsupportedError: of either, together.
    """
    named = asked.cluster is not None or asked.gpus is not None
    if asked.model is not None and named:
        given = JobFields(model=asked.model, cluster=asked.cluster, gpus=asked.gpus, calibration=asked.calibration)
        where = job_inputs(given)
        return where.model, where.cluster
    fitted = None if asked.calibration is None else calibration_of(asked.calibration)
    cluster = resolve_cluster(asked.cluster, asked.gpus, fitted) if named else None
    return (None if asked.model is None else resolve_model(asked.model)), cluster


_COUNTS = (
    *(8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 4, 2, 1),
    *(24, 48, 96, 192, 384, 768, 1536, 3072, 40, 80, 160, 320, 640, 1280, 72, 144, 288, 576, 1152, 2304),
)
"""Devices for which a file is read that does not say how many there are, until one goes with its degrees."""
_TIMES = (1, 2, 4, 8, 16, 3, 6, 12, 5, 7, 9)
"""How often the product of those degrees."""


def _for_devices(launch: LaunchSource, flags: LaunchFile) -> tuple[LaunchFile, Problem]:
    """A file without its cluster, read for as many devices as go with its degrees, and the question for them."""

    def others(read: LaunchFile) -> tuple[Problem, ...]:
        return tuple(problem for problem in read.problems if problem.field != DEVICES)

    row = flags.row
    count = row.devices if row is not None and row.devices > 1 else flags.started
    best = flags
    if (count is None or row is None or others(flags)) and not flags.questions:
        for devices in _counts(flags.multiple):
            read = replace(launch, devices=devices).read()
            if (read.row is not None and best.row is None) or len(read.problems) < len(best.problems):
                best, count = read, devices
            if best.row is not None and not others(best):
                break
    # The product of the degrees is what a file is read for where it says no count.
    own = flags.started if row is None or row.devices == flags.multiple else row.devices
    says = f"the file starts {count} processes" if count is not None and count == own else ""
    if says and flags.started is None:
        says = f"the file's batch and degrees are read as those of {count} devices, which it does not say"
    elif says and count != flags.started:
        says = f"the file starts {flags.started} processes, and its degrees go with {count}"
    why = f"a plan is made for one cluster: {says or 'the file does not say how many devices run it, or which'}"
    fix = f"say --gpus {count or 8}xH100, or how many of which there are; or --cluster FILE"
    question = Problem(what="no cluster is given", why=why, fix=fix, field="cluster")
    return replace(best, problems=others(best)), question


def _counts(multiple: int) -> Iterator[int]:
    """Counts of devices in the order in which a file is read for them, all divided by what divides its devices."""
    usual = [count for count in _COUNTS if count % multiple == 0]
    yield from dict.fromkeys([*usual, *(multiple * times for times in _TIMES)])


def shape_differs(model: ModelSpec, said: dict[str, Any]) -> Iterator[Violation]:
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


def _name_differs(model: ModelSpec, said: object) -> Iterator[Violation]:
    """A script that names another model of the library than the one to be checked."""
    known = models.find_name(said) if isinstance(said, str) and said else None
    if known is not None and models.spec(known).runs != model.runs and model.name != known:
        yield Violation(
            code="MODEL",
            what=f"the script's model is {str(said)[:80]}",
            why=f"{model.name}, the model to check, has other layers",
            fix="name the model that the script trains, or none",
            field="model",
        )
