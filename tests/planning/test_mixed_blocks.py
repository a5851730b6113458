"""FTPipe's partition in searches: maps of blocks made for the layers of a model, where they win."""

from __future__ import annotations

from typing import Any

import meshwright as mw
from meshwright.estimate.layout import ModelLayout, expand
from meshwright.library import models
from meshwright.planning.axes import space_of
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.model import LayerRun, LayerSpec, ModelSpec
from meshwright.specs.row_text import parse_row
from meshwright.specs.workload import Workload

MAP = "ftpipe-flush-0_1_2_1_0"


def run_of(ffn_hidden: int, repeats: int) -> LayerRun:
    attention = Attention(heads=16, kv_heads=16, head_dim=128)
    return LayerRun(
        layers=(LayerSpec(attention=attention, mlp=DenseMlp(ffn_hidden=ffn_hidden, gated=True)),), repeats=repeats
    )


WIDE_MIDDLE = ModelSpec(
    name="wide-middle",
    family="llama",
    hidden=2048,
    vocab=4096,
    max_seq_len=4096,
    source="made up for this test",
    tied_embeddings=False,
    runs=(run_of(8192, 4), run_of(65536, 2), run_of(8192, 4)),
)


def best(**asked: Any) -> dict[str, Any]:
    found = mw.plan(WIDE_MIDDLE, gpus="3xA100-80", seq_len=2048, global_batch=60, pin="pp=3", top=1, **asked)
    plan: dict[str, Any] = found.to_dict()["plans"][0]
    return plan


def test_a_search_takes_blocks_that_are_not_neighbours_where_they_are_quickest() -> None:
    cut, mixed = best(schedule="1f1b,interleaved"), best(schedule="1f1b,interleaved,ftpipe-flush")
    assert mixed["name"].endswith(MAP)
    assert mixed["estimate"]["step_time_s"] < 0.997 * cut["estimate"]["step_time_s"]


def test_a_map_is_tried_where_its_schedule_is_named_and_layers_are_unlike() -> None:
    workload = Workload(seq_len=2048, global_batch=60)

    def schedules(model: ModelSpec, *named: str) -> list[str]:
        return list(map(str, space_of(model, workload, 3, schedule=named).pinned("schedule") or ()))

    assert MAP in schedules(WIDE_MIDDLE, "ftpipe-flush")
    assert MAP in schedules(WIDE_MIDDLE, "all")
    assert MAP.replace("-flush", "") in schedules(WIDE_MIDDLE, "ftpipe")
    assert schedules(WIDE_MIDDLE, "ftpipe-flush-0_1_2") == ["ftpipe-flush-0_1_2"]
    assert schedules(models.spec("gpt2"), "ftpipe-flush") == ["ftpipe-flush"]
    assert space_of(WIDE_MIDDLE, workload, 3).pinned("schedule") is None


def test_layers_of_a_map_make_workers_alike() -> None:
    """Equal stages would give the worker with two of three stages twice the other's work."""
    row = parse_row("pp2.vpp2.dp1.mbs1.gbs8.ftpipe-0_1_0", devices=2, global_batch=8, schedules=("ftpipe-0_1_0",))
    model = models.spec("llama-3-8b")
    counts = ModelLayout.of(model, 2048).split_of(row)
    assert abs(counts[0] + counts[2] - counts[1]) <= 4  # the head is worth two to three layers
    held = [worker.chunks for worker in expand(row, model, 2048).pipelines[0].workers]
    assert [[sum(run.layers for run in chunk.runs) for chunk in own] for own in held] == [
        [counts[0], counts[2]],
        [counts[1]],
    ]
