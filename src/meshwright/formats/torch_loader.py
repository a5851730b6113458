"""A Python file that loads an exported schedule into `torch.distributed.pipelining` (2.13 to 2.15), to be edited."""

from __future__ import annotations

from collections.abc import Sequence

COMPUTE_FILE = "schedule.csv"
COMMUNICATION_FILE = "schedule-with-communication.csv"

_TEXT = '''\
"""{title}.

Each rank of the pipeline builds the stages that are its own and steps through the schedule:

    from torch.distributed.pipelining import PipelineStage
    from load_schedule import LAYERS_OF_STAGE, RANK_OF_STAGE, load_schedule, stages_of

    stages = [
        PipelineStage(build(LAYERS_OF_STAGE[stage]), stage, len(RANK_OF_STAGE), device, group=pipeline_group)
        for stage in stages_of(rank)
    ]
    schedule = load_schedule(stages, loss_fn)
    schedule.step(batch)               # on the rank of stage 0
    schedule.step(target=target)       # on the rank of the last stage; elsewhere schedule.step()
"""

import re
from pathlib import Path

from torch.distributed.pipelining.schedules import _Action, _ComputationType, _PipelineScheduleRuntime

MICRO_BATCHES = {micro_batches}
RANK_OF_STAGE = {ranks}
# Ranges of layers, first and last. Stage {embedding} also has the embedding, stage {head} the norm, head and loss.
LAYERS_OF_STAGE = [
{layers}
]


def stages_of(rank):
    """The virtual stages that a rank of the pipeline holds."""
    return [stage for stage, holder in enumerate(RANK_OF_STAGE) if holder == rank]


def load_schedule(stages, loss_fn, *, with_communication=False):
    """The schedule over this rank's PipelineStage objects.

    PyTorch puts the communication in itself; with_communication takes the file that spells it out, which gathers and
    frees no sharded weights.
    """
    schedule = _PipelineScheduleRuntime(stages, MICRO_BATCHES, loss_fn=loss_fn)
    if not with_communication:
        schedule._load_csv(str(Path(__file__).with_name("{compute}")), format="compute_only")
        return schedule
    rows = [line.split(",") for line in Path(__file__).with_name("{communication}").read_text().splitlines()]
    if hasattr(_ComputationType, "WAIT_SEND_F"):
        rows = [_with_waits(row) for row in rows]
    actions = {{rank: [_Action.from_str(cell) for cell in row] for rank, row in enumerate(rows)}}
    schedule._prepare_schedule_with_comms(actions, format="compute_comms")
    return schedule


def _with_waits(row):
    """The actions of a rank with a wait for every send and reduction, as PyTorch 2.15 and newer want them.

    Activations are waited for behind the stage's own backward, which proves that they were received.
    """
    waits, found = [], []
    for cell in row:
        found.append(cell)
        if sent := re.fullmatch(r"(\\d+)(SEND_[FB])(\\d+)", cell):
            waits.append(f"{{sent[1]}}WAIT_{{sent[2]}}{{sent[3]}}")
        elif reduced := re.fullmatch(r"(\\d+)REDUCE_GRAD", cell):
            found.append(f"{{reduced[1]}}WAIT_REDUCE_GRAD")
        for stage, unit in re.findall(r"(\\d+)[BI](\\d+)", cell):
            received = f"{{stage}}WAIT_SEND_F{{unit}}"
            if received in waits:
                waits.remove(received)
                found.append(received)
    return found + waits
'''


def loader_text(
    title: str,
    micro_batches: int,
    ranks: Sequence[int],
    layers: Sequence[Sequence[tuple[int, int]]],
    edges: tuple[int, int],
) -> str:
    """The file, beside `COMPUTE_FILE` and `COMMUNICATION_FILE`.

    Args:
        title: what the schedule is of, one line.
        micro_batches: the number of micro-batches per step.
        ranks: rank of each virtual stage.
        layers: the layers of each virtual stage, its ranges of layers, first and last.
        edges: stages with the embedding and with the head.
    """
    return _TEXT.format(
        title=" ".join(title.replace("\\", "/").replace('"', "'").split()),
        micro_batches=micro_batches,
        ranks=list(ranks),
        layers="\n".join(f"    {[tuple(span) for span in spans]}," for spans in layers),
        embedding=edges[0],
        head=edges[1],
        compute=COMPUTE_FILE,
        communication=COMMUNICATION_FILE,
    )
