"""A Python file that loads an exported schedule into `torch.distributed.pipelining` (2.13), to be read and edited."""

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

from pathlib import Path

from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

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
    name = "{communication}" if with_communication else "{compute}"
    file = Path(__file__).with_name(name)
    schedule._load_csv(str(file), format="compute_comms" if with_communication else "compute_only")
    return schedule
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
        micro_batches: per step.
        ranks: rank of each virtual stage.
        layers: of each virtual stage, its ranges of layers, first and last.
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
