"""Dispatchers of experts of one's own: this file alone, and every verb takes them or says why it does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshwright.cli import main
from meshwright.errors import InputError
from meshwright.specs.dispatchers import DISPATCHERS, Dispatcher
from meshwright.specs.operators import Exchange
from meshwright.strategies import DISPATCHES, register
from meshwright.strategies.base import Call, TokenTraffic
from meshwright.strategies.columns import StrategyColumns
from tests.virtual_devices import eight_devices

eight_devices()

LEVELS = Dispatcher(name="own-levels", token="eplevels", by_level=True)
"""Made of a trait that there is."""
RELAY = Dispatcher(name="relayed", token="eprelay", traffic="relay")


class Relay(TokenTraffic):
    """Every copy goes to a rank that passes it on, so that each exchange is two."""

    name = "relay"

    def calls(
        self, op: Exchange, columns: StrategyColumns, copies: float, forward_bytes: float, backward_bytes: float
    ) -> tuple[Call, ...]:
        """Two all-to-alls of the copies, forward and backward."""
        elements = columns.exchanged(copies) / columns.etp * op.width
        forward = Call(
            kind="all_to_all",
            category="ep",
            phase="forward",
            group="ep",
            repeats=2.0,
            payload_bytes=elements * forward_bytes,
        )
        backward = Call(
            kind="all_to_all",
            category="ep",
            phase="backward",
            group="ep",
            repeats=2.0,
            payload_bytes=elements * backward_bytes,
        )
        return forward, backward


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    for entry in (LEVELS, Relay(), RELAY):
        register(entry)
    yield
    del DISPATCHERS["own-levels"], DISPATCHERS["relayed"], DISPATCHES["relay"]


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


MODEL, GPUS = "deepseek-v2-lite", ("--gpus", "2x8xH100", "--seq", "4096")


def exchanges_s(capsys: pytest.CaptureFixture[str], token: str) -> float:
    plan = ".".join(filter(None, ("ep16", token, "dp16.z1.mbs1.gbs64")))
    (entry,) = answer(capsys, "estimate", MODEL, "--plan", plan, *GPUS)["plans"]
    assert entry["name"] == plan
    return float(entry["estimate"]["breakdown_s"]["ep"])


def test_estimates_price_them(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = {token: exchanges_s(capsys, token) for token in ("", "ep2h", "eplevels", "eprelay")}
    assert seconds["eprelay"] == pytest.approx(2 * seconds[""], rel=0.02)
    assert seconds["eplevels"] == seconds["ep2h"] != seconds[""]


def test_searches_try_them_where_they_are_named_and_files_carry_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("plan", MODEL, *GPUS, "--gbs", "64", "--top", "1")
    (usual,) = answer(capsys, *words)["plans"]
    assert not {"eplevels", "eprelay"} & set(usual["name"].split("."))
    for name, token in (("own-levels", "eplevels"), ("relayed", "eprelay")):
        file = str(tmp_path / f"{token}.json")
        assert main([*words, "--pin", f"dispatcher={name}", "--pin", "ep=8", "-o", file]) == 0
        capsys.readouterr()
        (read,) = answer(capsys, "estimate", "--plan", f"{file}#1")["plans"]
        assert token in read["name"].split(".")
        assert main(["explain", f"{file}#1"]) == 0
        assert main(["trace", f"{file}#1", "-o", str(tmp_path / "step.json")]) == 0
        capsys.readouterr()
        for target in ("megatron", "torchtitan", "deepspeed"):
            assert main(["export", f"{file}#1", "--to", target, "-o", str(tmp_path / target / token)]) == 4, target
            assert name in capsys.readouterr().err, target


def test_opened_axes_hold_them(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", MODEL, *GPUS, "--gbs", "64", "--top", "1", "--methods", "dispatcher")
    both = answer(capsys, *words)["search"]["space"]
    assert both > answer(capsys, *words, "--forbid", "dispatcher=relayed")["search"]["space"]
    assert main(["plan", MODEL, *GPUS, "--pin", "dispatcher=relay"]) == 2
    assert "relayed" in capsys.readouterr().err


def test_two_of_them_in_one_plan_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", MODEL, "--plan", "ep16.eprelay.epdedup.dp16.mbs1.gbs64", *GPUS]) == 2
    assert "a second time" in capsys.readouterr().err


def test_the_runtime_refuses_what_it_does_not_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "moe-tiny", "--steps", "1", "--plan", "dp4.ep4.eprelay.mbs1.gbs8"]) == 4
    assert "dispatcher relayed does not run here" in capsys.readouterr().err


def test_names_that_are_taken_or_no_part_of_a_plan_are_refused() -> None:
    with pytest.raises(InputError, match="exists"):
        register(RELAY)
    with pytest.raises(InputError, match="something else"):
        register(Dispatcher(name="other", token="epdedup"))
    with pytest.raises(InputError, match="begin with ep"):
        register(Dispatcher(name="other", token="ep8"))
    with pytest.raises(InputError, match="one way to send"):
        Dispatcher(name="other", token="epother", once=True, traffic="relay")
