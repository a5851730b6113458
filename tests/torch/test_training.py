"""PyTorch loads our files and trains by them on real processes, to the losses and gradients of GPipe."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.distributed.pipelining.schedules import _ComputationType
from torch.multiprocessing import start_processes

from meshwright.app.export import export
from meshwright.estimate.layout import expand
from meshwright.formats.torch_csv import with_waits, write_actions
from meshwright.library.clusters import resolve_gpus
from meshwright.library.models import resolve
from meshwright.schedules import SCHEDULES, with_communication
from meshwright.schedules.torch_actions import to_actions
from meshwright.specs.job import Job
from meshwright.specs.row_text import parse_row
from meshwright.specs.workload import Workload
from tests.torch.training import TORCH_GPIPE, Run, Trained, Weights, serve_rank, train_alone

pytestmark = pytest.mark.torch

P, M = 4, 8
NAMES = (
    "gpipe", "1f1b", "pipedream-flush", "varuna", "bpipe", "dynapipe", "zb-h1", "zb-h2", "zb-auto",
    "interleaved", "interleaved-zb", "breadth-first", "zb-v", "v-half", "v-min", "dualpipev", "hanayo", "mobius",
)  # fmt: skip
TWO_CHUNKS = NAMES[NAMES.index("interleaved") :]
PAIRS = ((1, 3), (2, 2), (2, 5), (3, 3), (3, 4), (4, 4), (4, 8), (4, 11))
"""Ranks and micro-batches of the watched 1F1B."""
STYLES = ("compute_only", "compute_comms")
EXPORTED = "tp2.pp4.vpp2.dp1.mbs1.gbs8"
"""A plan of 4 ranks and 8 micro-batches."""
RUNS = tuple(f"{name}, {style}" for name in (*NAMES, EXPORTED) for style in STYLES)


@dataclass(frozen=True)
class Outcome:
    """What all ranks leave behind."""

    trained: dict[str, Trained]
    """By schedule; weights and gradients of all stages, losses of the last."""
    orders: dict[tuple[int, int], list[list[str]]]
    """What each rank of PyTorch's 1F1B ran."""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """All schedules on one set of processes."""
    folder = tmp_path_factory.mktemp("ranks")
    runs = [*(run for name in NAMES for run in written(name, folder)), *exported(folder / "pipeline")]
    # The processes are forks of one that has loaded PyTorch and nothing else.
    multiprocessing.set_forkserver_preload(["tests.torch.training"])
    start_processes(serve_rank, (P, str(folder), runs, PAIRS), nprocs=P, start_method="forkserver")
    ranks = [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(P)]
    trained = {name: together([found[name] for found, _ in ranks]) for name in ranks[0][0]}
    return Outcome(trained, {pair: [orders[pair] for _, orders in ranks[: pair[0]]] for pair in PAIRS})


def written(name: str, folder: Path) -> list[Run]:
    """The schedule in both formats."""
    table = SCHEDULES[name].table(P, M, 2 if name in TWO_CHUNKS else 1)
    runs = []
    for style, given in zip(STYLES, (table, with_communication(table)), strict=True):
        file = folder / f"{name}-{style}.csv"
        actions = to_actions(given)
        if style == "compute_comms" and hasattr(_ComputationType, "WAIT_SEND_F"):
            actions = with_waits(actions)  # PyTorch 2.15 and newer
        file.write_text(write_actions(actions))
        runs.append(Run(f"{name}, {style}", file, style, M, tuple(table.placement.worker.tolist())))
    return runs


def exported(folder: Path) -> list[Run]:
    """A plan's pipeline, loaded by the Python file that the export writes."""
    row = parse_row(EXPORTED, devices=8, global_batch=M, schedules=())
    model, cluster = resolve("llama-3-8b"), resolve_gpus("8xH100")
    workload = Workload(seq_len=4096, global_batch=M)
    job = Job(model=model, cluster=cluster, workload=workload, plan=expand(row, model, 4096), name=EXPORTED)
    export(job, "torch-csv", folder)
    stages = tuple(SCHEDULES["interleaved"].placement(P, 2).worker.tolist())
    return [Run(f"{EXPORTED}, {style}", folder / "load_schedule.py", style, M, stages) for style in STYLES]


def together(ranks: list[Trained]) -> Trained:
    weights: Weights = {}
    gradients: Weights = {}
    for rank in ranks:
        assert not weights.keys() & rank.weights.keys()
        weights |= rank.weights
        gradients |= rank.gradients
    return Trained([loss for rank in ranks for loss in rank.losses], weights, gradients)


@pytest.mark.parametrize("name", [TORCH_GPIPE, *RUNS])
def test_training_ends_where_training_in_one_process_does(outcome: Outcome, name: str) -> None:
    expected, found = train_alone(M), outcome.trained[name]
    assert len(set(expected.losses)) == len(expected.losses)
    assert found.losses == pytest.approx(expected.losses, rel=1e-12)
    assert found.losses == pytest.approx(outcome.trained[TORCH_GPIPE].losses, rel=1e-12)
    for theirs, ours in ((expected.weights, found.weights), (expected.gradients, found.gradients)):
        assert theirs.keys() == ours.keys()
        for parameter, values in theirs.items():
            assert values.abs().max() > 1e-6
            assert (ours[parameter] - values).abs().max() < 1e-10 * values.abs().max(), parameter


@pytest.mark.parametrize(("p", "m"), PAIRS)
def test_pytorch_runs_our_order_of_1f1b(outcome: Outcome, p: int, m: int) -> None:
    ours = write_actions(to_actions(SCHEDULES["1f1b"].table(p, m))).splitlines()
    assert [",".join(order) for order in outcome.orders[p, m]] == ours
