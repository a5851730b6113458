"""Strategies of one's own: this file alone, and every verb takes them or says why it does not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright.cli import main
from meshwright.errors import InputError
from meshwright.specs.operators import Linear
from meshwright.strategies import CONTEXTS, TENSORS, register
from meshwright.strategies.base import AttentionBlock, Call, ContextStrategy, LocalGemm
from meshwright.strategies.columns import StrategyColumns
from meshwright.strategies.tensor_1d import OneDimension
from tests.virtual_devices import eight_devices

eight_devices()


class Twice(OneDimension):
    """1D that sends everything twice."""

    name = "twice"
    summary = "1d that sends everything twice"
    overlaps = ("bulk",)
    runs = False

    def linear(self, op: Linear, columns: StrategyColumns, activation_bytes: float) -> LocalGemm:
        """Elements of twice their size."""
        return super().linear(op, columns, 2 * activation_bytes)


def of_the_page() -> ContextStrategy:
    """The strategy that docs/extending.md shows, as it stands there."""
    page = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
    (code,) = re.findall(r"```python\n(class Broadcasts.*?)```", page, flags=re.DOTALL)
    names: dict[str, Any] = {
        "AttentionBlock": AttentionBlock,
        "Call": Call,
        "ContextStrategy": ContextStrategy,
        "np": np,
    }
    exec(code, names)
    found: ContextStrategy = names["Broadcasts"]()
    return found


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register(Twice())
    register(of_the_page())
    yield
    del TENSORS["twice"]
    del CONTEXTS["bcast"]


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


MODEL, GPUS = "llama-3.1-8b", ("--gpus", "8xH100", "--seq", "8192")


def estimated(capsys: pytest.CaptureFixture[str], plan: str) -> dict[str, float]:
    (entry,) = answer(capsys, "estimate", MODEL, "--plan", plan, *GPUS)["plans"]
    assert entry["name"] == plan
    return dict(entry["estimate"]["breakdown_s"])


def test_estimates_know_them(capsys: pytest.CaptureFixture[str]) -> None:
    plain, twice = (estimated(capsys, f"tp4{kind}.dp2.mbs1.gbs16") for kind in ("", "-twice"))
    assert twice["tp"] > 1.9 * plain["tp"]
    ring, sent = (estimated(capsys, f"cp4{kind}.dp2.mbs1.gbs16") for kind in ("", "-bcast"))
    assert sent["cp"] > ring["cp"]


def test_a_search_finds_them_where_they_are_named_and_files_carry_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("plan", MODEL, *GPUS, "--gbs", "16", "--top", "1")
    (found,) = answer(capsys, *words, "--pin", "tensor=twice")["plans"]
    assert "-twice." in found["name"]
    file = str(tmp_path / "plans.json")
    assert main([*words, "--pin", "cp=4", "--pin", "cp_kind=bcast", "-o", file]) == 0
    capsys.readouterr()
    (read,) = answer(capsys, "estimate", "--plan", f"{file}#1")["plans"]
    assert "cp4-bcast" in read["name"]
    assert main(["trace", f"{file}#1", "-o", str(tmp_path / "step.json")]) == 0
    assert main(["export", f"{file}#1", "--to", "megatron", "-o", str(tmp_path / "megatron")]) == 4
    assert "bcast" in capsys.readouterr().err


@pytest.mark.parametrize("plan", ["tp2-twice.dp1", "cp2-bcast.dp1"])
def test_the_runtime_says_that_it_does_not_run_them(capsys: pytest.CaptureFixture[str], plan: str) -> None:
    assert main(["run", "gpt-tiny", "--plan", plan, "--steps", "1"]) == 4
    assert "does not run here" in capsys.readouterr().err


def test_names_that_are_taken_or_no_part_of_a_plan_are_refused() -> None:
    with pytest.raises(InputError, match="exists"):
        register(Twice())
    Twice.name = "2 times"
    try:
        with pytest.raises(InputError, match="another name"):
            register(Twice())
    finally:
        Twice.name = "twice"
