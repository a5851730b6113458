"""A small model trained by PyTorch on real processes, each a rank of a pipeline; and the same in one process."""

from __future__ import annotations

import math
import runpy
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup, destroy_process_group, init_process_group, new_group
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

BLOCKS = 16
WIDTH = 8
ROWS = 2
"""Rows of a micro-batch."""
STEPS = 2
LEARNING_RATE = 0.5
CPU = torch.device("cpu")
TORCH_GPIPE = "PyTorch's own GPipe"

Curve = list[float]
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Run:
    """One schedule as a file, and how PyTorch is to read it."""

    name: str
    file: Path
    """The schedule, or the exported Python file that loads it."""
    format: str
    """compute_only or compute_comms."""
    micro_batches: int
    stages: tuple[int, ...]
    """Rank of each virtual stage."""


@dataclass(frozen=True)
class Trained:
    """What training leaves behind: the loss of each step, and the weights and last gradients it ends with."""

    losses: Curve
    weights: Weights
    gradients: Weights


def model() -> nn.Sequential:
    """Blocks that are not linear, so that a wrong micro-batch or a stale weight shows; the same in every process."""
    torch.manual_seed(7)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(BLOCKS)]
    return nn.Sequential(*blocks).double()


def batch(step: int, micro_batches: int) -> tuple[Tensor, Tensor]:
    """Input and target of a step, all micro-batches together."""
    generator = torch.Generator().manual_seed(100 + step)
    shape = (micro_batches * ROWS, WIDTH)
    return (
        torch.randn(shape, generator=generator, dtype=torch.float64),
        torch.randn(shape, generator=generator, dtype=torch.float64),
    )


def blocks_of(stage: int, stages: int) -> range:
    """The blocks of a virtual stage."""
    return range(stage * BLOCKS // stages, (stage + 1) * BLOCKS // stages)


def train_alone(micro_batches: int) -> Trained:
    """Training in one process, without any pipeline."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), LEARNING_RATE)
    losses = []
    for step in range(STEPS):
        inputs, target = batch(step, micro_batches)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(inputs), target)
        loss.backward()
        losses.append(loss.item())
        if step < STEPS - 1:
            optimizer.step()
    return Trained(losses, *_state(net))


def serve_rank(rank: int, ranks: int, folder: str, runs: Sequence[Run], pairs: Sequence[tuple[int, int]]) -> None:
    """Trains by every schedule in turn as one rank, and leaves what comes out in the folder.

    Args:
        rank: this process.
        ranks: processes.
        folder: where the processes meet and leave their results.
        runs: schedules from files, all of one number of micro-batches, which PyTorch's own GPipe trains with as well.
        pairs: ranks and micro-batches with which PyTorch's own 1F1B is watched.
    """
    torch.set_num_threads(1)
    init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
    trained = {run.name: _train_by_file(run, rank) for run in runs}
    trained[TORCH_GPIPE] = _train_by_gpipe(rank, ranks, runs[0].micro_batches)
    groups = {p: new_group(list(range(p))) for p in sorted({p for p, _ in pairs})}
    orders = {(p, m): _order_of_1f1b(rank, p, m, groups[p]) for p, m in pairs if rank < p}
    torch.save((trained, orders), f"{folder}/rank-{rank}.pt")
    destroy_process_group()


def _train_by_file(run: Run, rank: int) -> Trained:
    count = len(run.stages)
    stages = [PipelineStage(_blocks(n, count), n, count, CPU) for n, owner in enumerate(run.stages) if owner == rank]
    if run.file.suffix == ".py":
        exported = runpy.run_path(str(run.file))
        assert exported["stages_of"](rank) == [stage.stage_index for stage in stages]
        load, spelt_out = exported["load_schedule"], run.format == "compute_comms"
        return _train(load(stages, nn.functional.mse_loss, with_communication=spelt_out), stages, run.micro_batches)
    schedule = _PipelineScheduleRuntime(stages, run.micro_batches, loss_fn=nn.functional.mse_loss)
    schedule._load_csv(str(run.file), format=run.format)
    return _train(schedule, stages, run.micro_batches)


def _train_by_gpipe(rank: int, ranks: int, micro_batches: int) -> Trained:
    stage = PipelineStage(_blocks(rank, ranks), rank, ranks, CPU)
    return _train(ScheduleGPipe(stage, micro_batches, loss_fn=nn.functional.mse_loss), [stage], micro_batches)


class _ListedStage(PipelineStage):
    """A stage that writes down what it is told to run."""

    def __init__(self, stage: int, stages: int, group: ProcessGroup) -> None:
        super().__init__(_blocks(stage, stages), stage, stages, CPU, group=group)
        self.order: list[str] = []

    def forward_one_chunk(self, chunk: int, *args: object, **options: object) -> object:
        self.order.append(f"{self.stage_index}F{chunk}")
        return super().forward_one_chunk(chunk, *args, **options)

    def backward_one_chunk(self, chunk: int, *args: object, **options: object) -> object:
        self.order.append(f"{self.stage_index}B{chunk}")
        return super().backward_one_chunk(chunk, *args, **options)


def _order_of_1f1b(rank: int, ranks: int, micro_batches: int, group: ProcessGroup) -> list[str]:
    """What PyTorch's 1F1B really runs; the order it prints numbers the micro-batches of the last rank from 1."""
    stage = _ListedStage(rank, ranks, group)
    schedule = Schedule1F1B(stage, micro_batches, loss_fn=nn.functional.mse_loss)
    inputs, target = batch(0, micro_batches)
    schedule.step(*([inputs] if stage.is_first else []), target=target if stage.is_last else None)
    return stage.order


def _blocks(stage: int, stages: int) -> nn.Sequential:
    net = model()
    own = nn.Sequential()
    for block in blocks_of(stage, stages):
        own.add_module(str(block), net[block])
    return own


def _train(schedule: ScheduleGPipe | _PipelineScheduleRuntime, stages: list[PipelineStage], m: int) -> Trained:
    net = nn.ModuleList([stage.submod for stage in stages])
    optimizer = torch.optim.SGD(net.parameters(), LEARNING_RATE)
    first = any(stage.is_first for stage in stages)
    last = any(stage.is_last for stage in stages)
    curve = []
    for step in range(STEPS):
        inputs, target = batch(step, m)
        optimizer.zero_grad()
        losses: list[Tensor] = []
        schedule.step(*([inputs] if first else []), target=target if last else None, losses=losses if last else None)
        curve.append(math.fsum(loss.item() for loss in losses) / m)
        if step < STEPS - 1:
            optimizer.step()
    weights: Weights = {}
    gradients: Weights = {}
    for stage in stages:
        for kept, found in zip((weights, gradients), _state(stage.submod), strict=True):
            kept.update(found)
    return Trained(curve if last else [], weights, gradients)


def _state(net: nn.Module) -> tuple[Weights, Weights]:
    weights = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    return weights, {name: parameter.grad.clone() for name, parameter in net.named_parameters()}
