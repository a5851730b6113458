"""Logits and loss in pieces, where a trainer's switch says that Liger makes them: the pieces that it makes of a job."""

from __future__ import annotations

from dataclasses import replace

from meshwright.formats.launch_file import LaunchFile, Said
from meshwright.launch_files.trainer_option_names import PIECES
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.specs.job import Job
from meshwright.targets.liger import pieces

SWITCHES = (*PIECES, "liger_fused_linear_cross_entropy")
"""Switches of trainers' options, and Axolotl's."""
_ON = ("true", "given", "1", "")


def switch_of(launch: LaunchFile) -> Said | None:
    """The switch of a file that has logits made in pieces; None where none is on."""
    said = (*launch.said, *launch.unpriced)
    return next((one for one in said if _name(one) in SWITCHES and one.value.lower() in _ON), None)


def _name(said: Said) -> str:
    return said.option.removeprefix("--").replace("-", "_").rpartition(".")[2]


def at_once(job: Job) -> Job:
    """A job as a target writes it, whose file's own switch makes the pieces.

    Args:
        job: the plan, with pieces or without.
    """
    return replace(job, workload=replace(job.workload, loss_tiles=1))


def with_pieces(launch: LaunchFile, inputs: JobInputs) -> tuple[LaunchFile, JobInputs]:
    """A file and its job, whose logits are made in pieces where a switch of the file says so.

    Args:
        launch: the file as read.
        inputs: its job, with the usual single piece.
    """
    switch, row = switch_of(launch), launch.row
    if switch is None or row is None or inputs.workload.loss_tiles > 1:
        return launch, inputs
    ranks = 1
    for _, degree in row.cp:
        ranks *= degree
    count = pieces(max(1, row.mbs * inputs.workload.seq_len // ranks), inputs.model.hidden, inputs.model.vocab)
    note = f"{switch.option}: Liger makes logits and loss in {count} pieces of a micro-batch's tokens"
    rest = tuple(one for one in launch.unpriced if one is not switch)
    said = launch.said if switch in launch.said else (*launch.said, switch)
    launch = replace(launch, said=said, unpriced=rest, notes=(*launch.notes, note))
    return launch, replace(inputs, workload=replace(inputs.workload, loss_tiles=count))
