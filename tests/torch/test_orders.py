"""Our orders are PyTorch's own, task by task, and its files read back as our tables."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.pipelining import (
    PipelineStage,
    ScheduleDualPipeV,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import PipelineScheduleMulti
from torch.testing._internal.distributed.fake_pg import FakeStore

from meshwright.formats.torch_csv import read_actions, write_actions
from meshwright.schedules import SCHEDULES, Kind, Schedule, schedule_named
from meshwright.schedules.named.breadth_first import BreadthFirst
from meshwright.schedules.named.interleaved import Interleaved
from meshwright.schedules.named.interleaved_zb import InterleavedZeroBubble
from meshwright.schedules.torch_actions import from_actions, to_actions
from meshwright.targets.pytorch_pipeline import in_pytorch_rounds

pytestmark = pytest.mark.torch

LOOPED = ((2, 4, 2), (4, 4, 2), (4, 8, 2), (4, 12, 3), (3, 9, 4), (8, 16, 2))
IN_ROUNDS = ((4, 10, 2), (4, 6, 2), (3, 8, 2), (5, 12, 3), (6, 16, 2), (4, 2, 2), (4, 3, 3), (8, 1, 2))
"""Micro-batches that p does not divide: PyTorch parts them into m // p equal groups."""
FOLDED = ((1, 2), (2, 4), (4, 8), (4, 12), (6, 13), (8, 21))
CASES = (
    *((ScheduleInterleaved1F1B, Interleaved(), *shape) for shape in LOOPED),
    *(
        (ScheduleInterleaved1F1B, schedule_named(in_pytorch_rounds("interleaved", *shape[:2])), *shape)
        for shape in IN_ROUNDS
    ),
    *((ScheduleInterleavedZeroBubble, InterleavedZeroBubble(), *shape) for shape in LOOPED),
    *((ScheduleLoopedBFS, BreadthFirst(reverse=True), *shape) for shape in (*LOOPED, (4, 3, 3), (4, 1, 2))),
    *((ScheduleZBVZeroBubble, SCHEDULES["zb-v"], p, m, 2) for p, m in (*FOLDED, (3, 5))),
    # With fewer micro-batches than fill the pipeline.
    *((ScheduleZBVZeroBubble, SCHEDULES["zb-v"], p, m, 2) for p, m in ((2, 1), (4, 3), (8, 9))),
    *((ScheduleDualPipeV, SCHEDULES["dualpipev"], p, m, 2) for p, m in (*FOLDED, (3, 7))),
)


def name(value: object) -> str | None:
    if isinstance(value, Schedule):
        return value.name
    return None if isinstance(value, int) else value.__name__


def built(kind: type[PipelineScheduleMulti], p: int, m: int, v: int) -> PipelineScheduleMulti:
    """PyTorch's schedule as rank 0 of p builds it, which orders all ranks; nothing runs, so nobody else is there."""
    init_process_group("fake", store=FakeStore(), rank=0, world_size=p)
    try:
        folded = kind in (ScheduleZBVZeroBubble, ScheduleDualPipeV)
        held = [0, 2 * p - 1] if folded else range(0, p * v, p)
        stages = [PipelineStage(nn.Identity(), stage, p * v, torch.device("cpu")) for stage in held]
        return kind(stages, m, loss_fn=nn.functional.mse_loss)
    finally:
        destroy_process_group()


@pytest.mark.parametrize(("kind", "schedule", "p", "m", "v"), CASES, ids=name)
def test_orders_are_equal(
    kind: type[PipelineScheduleMulti], schedule: Schedule, p: int, m: int, v: int, tmp_path: Path
) -> None:
    table = schedule.table(p, m, v)
    theirs = built(kind, p, m, v)
    ours = [line.split(",") for line in write_actions(to_actions(table)).splitlines()]
    assert ours == [[str(action) for action in theirs.pipeline_order[rank] if action] for rank in range(p)]
    theirs._dump_csv(str(tmp_path / "theirs.csv"), format="compute_only")
    assert from_actions(read_actions(tmp_path / "theirs.csv")).entries() == table.entries()
    theirs._dump_csv(str(tmp_path / "theirs.csv"), format="compute_comms")
    whole = from_actions(read_actions(tmp_path / "theirs.csv"))
    assert (whole.kinds >= {Kind.UNSHARD, Kind.REDUCE, Kind.SEND_F, Kind.RECV_B}) == (p > 1)
    computed = whole.kind <= Kind.W
    for column in ("worker", "kind", "stage", "micro_batch"):
        assert getattr(whole, column)[computed].tolist() == getattr(table, column).tolist()
