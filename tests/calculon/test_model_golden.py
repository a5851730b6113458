"""Every number and every verdict of the original."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshwright.calculon.inputs import Application, System
from meshwright.calculon.layer_list import layer_list
from meshwright.calculon.legality import MEMORY_TIER1, RULES
from meshwright.calculon.model import price_for_search, price_memory
from meshwright.calculon.reading import read_execution
from meshwright.calculon.statistics import STATISTICS, CalculonColumns
from tests.calculon.figures import (
    DATA,
    SHELF,
    Design,
    answers,
    app_named,
    execution,
    lines,
    on_the_shelf,
    published,
    system_named,
)

TOLERANCE = 1e-12


def differences(design: Design, priced: CalculonColumns) -> list[str]:
    """What is not as the original has it."""
    found = []
    for number, row in enumerate(design.rows):
        if bool(priced.ok[number]) != row["ok"]:
            found.append(f"accepted {priced.ok[number]}, not {row['ok']}: {row['error']}")
            continue
        if not row["ok"]:
            continue
        stats = priced.stats(number)
        assert list(stats) == list(STATISTICS)
        assert stats.keys() == row["stats"].keys()
        for name, value in row["stats"].items():
            got = stats[name]
            same = got is None if value is None else got is not None and abs(got - value) <= TOLERANCE * abs(value)
            if isinstance(value, int):
                same = got == value
            if not same:
                found.append(f"{name} is {got!r}, not {value!r}")
    return found


SETS = pytest.mark.parametrize(
    "path",
    [DATA / "golden_sample.jsonl.gz", pytest.param(SHELF / "golden.jsonl.gz", marks=on_the_shelf)],
    ids=["sample", "all"],
)


@SETS
def test_every_answer_is_reproduced(path: Path) -> None:
    everything = answers(path)
    assert sum(len(design.rows) for design, _ in everything) in (72, 2475)
    assert [problem for design, priced in everything for problem in differences(design, priced)] == []


def rejections(path: Path) -> set[tuple[str, bool]]:
    """(the original's error, whether the broken rule is of its survivable kind) of rejected rows."""
    found = set()
    for design, priced in answers(path):
        for row, code in zip(design.rows, priced.reason.tolist(), strict=True):
            if not row["ok"]:
                found.add((row["error"], RULES[code].survivable))
    return found


@SETS
def test_a_rejection_is_of_the_same_kind(path: Path) -> None:
    kinds = rejections(path)
    assert len(kinds) > 20
    assert {error for error, survivable in kinds if error.startswith("Error:") != survivable} == set()


def test_a_rejection_for_memory_names_the_same_tier() -> None:
    for design, priced in answers():
        for row, code in zip(design.rows, priced.reason.tolist(), strict=True):
            if row["error"] and "Mem tier" in row["error"]:
                assert code - MEMORY_TIER1 == int("tier2" in row["error"])


@pytest.mark.parametrize(
    "path",
    [DATA / "layers_sample.jsonl.gz", pytest.param(SHELF / "golden_layers.jsonl.gz", marks=on_the_shelf)],
    ids=["sample", "all"],
)
def test_every_layer_is_reproduced(path: Path) -> None:
    for row in lines(path):
        got = layer_list(app_named(row["app"]), system_named(row["system"]), read_execution(row["execution"]))
        assert [layer["name"] for layer in got] == [layer["name"] for layer in row["layers"]]
        for ours, theirs in zip(got, row["layers"], strict=True):
            assert list(ours) == list(theirs)
            assert {**ours, "name": 0} == pytest.approx({**theirs, "name": 0}, rel=TOLERANCE, abs=0)


def test_a_search_sees_the_same_numbers() -> None:
    for design, whole in answers():
        quick = price_for_search(design.app, design.system, design.columns)
        assert (whole.ok == quick.ok).all()
        assert (whole.reason == quick.reason).all()
        ok = whole.ok
        assert (whole["total_time"][ok] == quick.total_time_s[ok]).all()
        assert (whole["sample_rate"][ok] == quick.sample_rate[ok]).all()
        assert (whole["proc_mem_tier1_cap_req"][ok] == quick.tier1_bytes[ok]).all()
        assert (whole["proc_mem_tier2_cap_req"][ok] == quick.tier2_bytes[ok]).all()
        memory = price_memory(design.app, design.system, design.columns.take(ok))
        assert (memory.tier1_bytes == quick.tier1_bytes[ok]).all()


def validated(row: dict[str, str]) -> tuple[Application, System, dict[str, Any]]:
    """The execution of a published value."""
    return (
        app_named(row["model"]),
        system_named(row["system"]),
        execution(
            num_procs=int(row["num_procs"]),
            tensor_par=int(row["tp"]),
            pipeline_par=int(row["pp"]),
            data_par=int(row["dp"]),
            batch_size=int(row["batch"]),
            microbatch_size=int(row["microbatch"]),
            pipeline_interleaving=int(row["interleave"]),
            activation_recompute=row["recompute"],
            tensor_par_comm_type=row["comm"],
            seq_par_ag_redo=row["ag_redo"] == "True",
            fused_activation=row["fused_activation"] == "True",
        ),
    )


def activations(stats: dict[str, Any]) -> float:
    return stats["act_space"] + stats["act_checkpoint_size"]


def answer(row: dict[str, str], none: dict[str, dict[str, Any]]) -> float:
    """The quantity of a published value."""
    app, system, asked = validated(row)
    stats = Design(app, system, ({"execution": asked},)).priced().stats(0)
    if row["metric"] == "time per global batch":
        return stats["total_time"]
    if row["metric"] == "activations":
        return activations(stats) / 2**30
    if row["metric"].startswith("activation memory relative"):
        if row["mode"] == "none":
            none[row["model"]] = stats
        return 100 * activations(stats) / activations(none[row["model"]])
    return (stats["weight_space"] + stats["weight_grad_space"] + stats["optimizer_space"]) / 2**30


def test_published_values_come_out_as_the_original_has_them() -> None:
    rows = published()
    assert len(rows) == 44
    none: dict[str, dict[str, Any]] = {}
    for row in rows:
        assert answer(row, none) == pytest.approx(float(row["calculon"]), abs=1e-6, rel=1e-6), row
