"""Data shardings of one's own: this file alone, and every verb takes them or says why it does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright.cli import main
from meshwright.errors import InputError, Problem
from meshwright.runtime.rank_steps.passing_steps import PASSING_STEPS, PassingStep
from meshwright.runtime.rank_steps.ring_steps import RingStep
from meshwright.shapes import Array
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow
from meshwright.specs.row_text import parse_row
from meshwright.specs.shardings import SHARDINGS, ShardingKind
from meshwright.specs.strategy import LayerStrategy
from meshwright.strategies import PASSINGS, register
from meshwright.strategies.base import Degrees, WeightPassing
from tests.virtual_devices import eight_devices

eight_devices()

GROUPS = ShardingKind(name="mics", zero=3, grouped=True)
"""ZeRO 3 inside groups of ranks, gradients summed between them; `z3` keeps the fp32 copy beside the weights."""
LINE = ShardingKind(name="bucketbrigade", zero=3, passing="line")


class Line(WeightPassing):
    """Groups of layers go down a line of ranks, and the first waits until the last has all of them."""

    name = "line"

    def problems(self, strategy: LayerStrategy, *, layers: int, workers: int, experts: bool) -> Iterator[Problem]:
        """No pipeline beside the line."""
        if workers > 1:
            yield Problem(what=f"bucketbrigade with pp{workers}", why="a line is a pipeline", fix="pp1", field="pp")

    def suits(self, degrees: Degrees, *, layers: int, experts: bool) -> np.ndarray:
        """No pipeline beside the line."""
        return np.asarray(degrees["pp"] == 1)

    def waits_s(
        self,
        forward_s: np.ndarray,
        backward_s: np.ndarray,
        count: np.ndarray,
        edges: np.ndarray,
        ranks: np.ndarray,
        micro_batches: int,
    ) -> np.ndarray:
        """A micro-batch for each rank before the last."""
        return np.asarray((ranks - 1) * ((forward_s + backward_s) @ count))

    def travelling_bytes(self, weight_bytes: Array | float, gradient_bytes: Array | float) -> Array:
        """One group of weights."""
        return np.asarray(weight_bytes)


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    for entry in (GROUPS, Line(), LINE):
        register(entry)
    yield
    del SHARDINGS["mics"], SHARDINGS["bucketbrigade"], PASSINGS["line"]


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


MODEL, GPUS = "llama-3.2-1b", ("--gpus", "16xH100", "--seq", "4096")


def estimated(capsys: pytest.CaptureFixture[str], sharding: str) -> dict[str, Any]:
    plan = f"dp16.{sharding}.mbs1.gbs64"
    (entry,) = answer(capsys, "estimate", MODEL, "--plan", plan, *GPUS)["plans"]
    assert entry["name"] == plan
    return dict(entry["estimate"])


def test_estimates_price_them(capsys: pytest.CaptureFixture[str]) -> None:
    groups, whole, hsdp = (estimated(capsys, word) for word in ("mics8", "z3", "hsdp8"))
    # Half as many ranks share the states; fsdp keeps no bf16 copy beside its shard.
    assert groups["breakdown_s"]["dp"] != whole["breakdown_s"]["dp"]
    kept, all_ranks = (one["stages"][0]["memory_bytes"]["optimizer"] for one in (groups, whole))
    assert kept == pytest.approx(2 * all_ranks)
    assert groups["stages"][0]["memory_bytes"] != hsdp["stages"][0]["memory_bytes"]
    line = estimated(capsys, "bucketbrigade")
    assert line["step_time_s"] > 3 * whole["step_time_s"]


def test_searches_try_them_where_they_are_named_and_files_carry_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("plan", MODEL, *GPUS, "--gbs", "64", "--top", "1")
    (usual,) = answer(capsys, *words)["plans"]
    assert "mics" not in usual["name"]
    file = str(tmp_path / "plans.json")
    assert main([*words, "--pin", "sharding=mics", "-o", file]) == 0
    capsys.readouterr()
    (read,) = answer(capsys, "estimate", "--plan", f"{file}#1")["plans"]
    assert "mics" in read["name"]
    assert main(["explain", f"{file}#1"]) == 0
    assert main(["trace", f"{file}#1", "-o", str(tmp_path / "step.json")]) == 0
    assert main(["export", f"{file}#1", "--to", "megatron", "-o", str(tmp_path / "megatron")]) == 0
    assert "--num-distributed-optimizer-instances" in (tmp_path / "megatron" / "train.sh").read_text()
    line = str(tmp_path / "line.json")
    assert main([*words, "--pin", "sharding=bucketbrigade", "-o", line]) == 0
    capsys.readouterr()
    (read,) = answer(capsys, "estimate", "--plan", f"{line}#1")["plans"]
    assert "bucketbrigade" in read["name"]
    assert "pp" not in read["name"]
    assert main(["explain", f"{line}#1"]) == 0
    for target in ("megatron", "torchtitan", "deepspeed"):
        assert main(["export", f"{line}#1", "--to", target, "-o", str(tmp_path / target / "line")]) == 4, target
        assert "passing" in capsys.readouterr().err, target


def test_what_has_no_meaning_beside_them_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    said = {}
    for plan in ("dp16.mics3", "pp2.dp8.bucketbrigade"):
        assert main(["estimate", MODEL, "--plan", f"{plan}.mbs1.gbs64", *GPUS]) == 2
        said[plan] = capsys.readouterr().err
    assert "mics3 with cp 1 and dp 16" in said["dp16.mics3"]
    assert "a line is a pipeline" in said["pp2.dp8.bucketbrigade"]


def test_the_runtime_runs_what_is_made_of_its_parts_and_refuses_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("run", "llama-tiny", "--steps", "1", "--plan")
    assert main([*words, "dp4.mics2.mbs1.gbs8"]) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert main([*words, "dp4.bucketbrigade.mbs1.gbs8"]) == 4
    assert "no step here passes weights on in this way" in capsys.readouterr().err


def test_a_way_of_weights_runs_as_soon_as_its_step_is_registered(capsys: pytest.CaptureFixture[str]) -> None:
    def few_layers(row: PlanRow, spec: ModelSpec | None, layers: int) -> Iterator[Problem]:
        if layers % row.dp:
            yield Problem(what=f"{layers} layers on {row.dp} ranks of a line", why="", fix="", field="layers")

    words = ("run", "llama-tiny", "--steps", "1", "--plan")
    PASSING_STEPS["line"] = PassingStep(step=RingStep, refusals=few_layers)
    try:
        assert main([*words, "dp2.bucketbrigade.mbs1.gbs4"]) == 0, capsys.readouterr().err
        capsys.readouterr()
        assert main([*words, "dp3.bucketbrigade.mbs1.gbs6"]) == 4
        assert "layers on 3 ranks of a line" in capsys.readouterr().err
    finally:
        del PASSING_STEPS["line"]


def test_names_that_are_taken_or_no_part_of_a_plan_are_refused() -> None:
    with pytest.raises(InputError, match="exists"):
        register(GROUPS)
    with pytest.raises(InputError, match="begin and end with a letter"):
        register(ShardingKind(name="dp2", zero=3))


def test_a_name_may_have_digits_between_its_letters() -> None:
    register(ShardingKind(name="z2in", zero=2, grouped=True))
    try:
        row = parse_row("dp8.z2in4.mbs1", devices=8, global_batch=8, schedules=())
        assert (row.sharding, row.shard_group) == ("z2in", 4)
    finally:
        del SHARDINGS["z2in"]
