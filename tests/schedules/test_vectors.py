"""Published orders, makespans, bubbles and peaks; forward 1 s, backward 2 s per full worker share, free transfers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.schedules import SCHEDULES, Kind, Placement, ScheduleTable, Times, makespans, simulate
from meshwright.schedules.in_flight import live_vectors
from meshwright.schedules.named.hanayo import Hanayo
from meshwright.schedules.named.seq1f1b import Seq1F1B
from meshwright.schedules.named.v_half import VHalf
from meshwright.schedules.named.v_min import VMin
from tests.schedules.cases import unequal
from tests.schedules.naive import naive_worker_ends

VECTORS = Path(__file__).resolve().parents[3] / "shared" / "methods" / "vectors.json"
OURS = {
    "gpipe": SCHEDULES["gpipe"],
    "1f1b": SCHEDULES["1f1b"],
    "interleaved1f1b": SCHEDULES["interleaved"],
    "zb_h1": SCHEDULES["zb-h1"],
    "zb_h2": SCHEDULES["zb-h2"],
    "zbv": SCHEDULES["zb-v"],
    "dualpipe": SCHEDULES["dualpipe"],
    "dualpipev": SCHEDULES["dualpipev"],
    "vhalf_raw": VHalf(raw=True),
    "vmin_raw": VMin(raw=True),
    "seq1f1b_k2": Seq1F1B(segments=2),
    "bfs": SCHEDULES["breadth-first"],
    "varuna": SCHEDULES["varuna"],
    "chimera": SCHEDULES["chimera"],
    "hanayo_W1": Hanayo(admit=8),  # the published orders hold any number
    "afp_a1": SCHEDULES["avgpipe"],
}


def all_vectors() -> list[dict]:
    return json.loads(VECTORS.read_text()) if VECTORS.exists() else []


def label(vector: dict) -> str:
    return f"{vector['name']}-p{vector['p']}-m{vector['m']}"


def peaks(table: ScheduleTable) -> list[int]:
    return [int(vectors.sum(axis=1).max()) for vectors in live_vectors(table)]


@pytest.mark.parametrize(
    ("name", "p", "m", "v", "makespan_s", "bubble", "most"),
    [
        ("gpipe", 2, 4, 1, 15.0, 0.2, [4, 4]),
        ("gpipe", 4, 4, 1, 21.0, 0.428571, [4, 4, 4, 4]),
        ("gpipe", 4, 8, 1, 33.0, 0.272727, [8, 8, 8, 8]),
        ("1f1b", 2, 4, 1, 15.0, 0.2, [2, 1]),
        ("1f1b", 4, 4, 1, 21.0, 0.428571, [4, 3, 2, 1]),
        ("1f1b", 4, 8, 1, 33.0, 0.272727, [4, 3, 2, 1]),
        ("interleaved", 2, 4, 2, 13.5, 0.111111, [5, 3]),
        ("interleaved", 4, 8, 2, 28.5, 0.157895, [11, 9, 7, 5]),
        ("interleaved", 4, 8, 4, 26.25, 1 - 24 / 26.25, [19, 17, 15, 13]),
    ],
)
def test_numbers(name: str, p: int, m: int, v: int, makespan_s: float, bubble: float, most: list[int]) -> None:
    table = SCHEDULES[name].table(p, m, v)
    timeline = simulate(table, Times.equal(p, v))
    assert timeline.makespan_s == pytest.approx(makespan_s)
    assert timeline.bubble_makespan == pytest.approx(bubble, abs=1e-6)
    assert timeline.span_s == pytest.approx(makespan_s)
    assert peaks(table) == most


@pytest.mark.parametrize(
    ("name", "p", "m", "v", "worker", "order"),
    [
        ("gpipe", 2, 4, 1, 1, "F0.0 F0.1 F0.2 F0.3 B0.3 B0.2 B0.1 B0.0"),
        ("1f1b", 4, 4, 1, 3, "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 F0.3 B0.3"),
        ("1f1b", 4, 4, 1, 1, "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3"),
        (
            "interleaved",
            2,
            4,
            2,
            0,
            "F0.0 F0.1 F1.0 F1.1 F0.2 B1.0 F0.3 B1.1 F1.2 B0.0 F1.3 B0.1 B1.2 B1.3 B0.2 B0.3",
        ),
        (
            "interleaved",
            2,
            4,
            2,
            1,
            "F0.0 F0.1 F1.0 B1.0 F1.1 B1.1 F0.2 B0.0 F0.3 B0.1 F1.2 B1.2 F1.3 B1.3 B0.2 B0.3",
        ),
    ],
)
def test_orders(name: str, p: int, m: int, v: int, worker: int, order: str) -> None:
    assert SCHEDULES[name].table(p, m, v).entries()[worker] == order.split()


def as_table(vector: dict) -> ScheduleTable:
    """The vector's own orders as a table: its virtual stages numbered chain after chain."""
    chains: dict[bool, dict[int, int]] = {}
    tasks = []
    for worker, order in enumerate(vector["orders"]):
        for entry in order:
            for part, text in enumerate(entry.split("+")):
                stage, letter, unit, up = re.fullmatch(r"(\d+)([FBIWR])(\d+)(u?)", text).groups()
                chains.setdefault(bool(up), {})[int(stage)] = worker
                tasks.append((worker, Kind[letter], int(stage), int(unit), bool(up), part > 0))
    directions = sorted(chains)
    placement = Placement.of_chains([[w for _, w in sorted(chains[up].items())] for up in directions])
    offset = {up: sum(len(chains[other]) for other in directions if other < up) for up in directions}
    units = {up: 1 + max(task[3] for task in tasks if task[4] == up) for up in directions}
    return ScheduleTable(
        placement=placement,
        micro_batches=tuple(units[up] for up in directions),
        worker=np.array([task[0] for task in tasks]),
        kind=np.array([int(task[1]) for task in tasks]),
        stage=np.array([task[2] + offset[task[4]] for task in tasks]),
        micro_batch=np.array([task[3] for task in tasks]),
        fused=np.array([task[5] for task in tasks]),
        segments=vector["v"] if vector["name"].startswith("seq1f1b") else 1,
    )


@pytest.mark.skipif(not VECTORS.exists(), reason="the published vectors are not beside the checkout")
@pytest.mark.parametrize("vector", all_vectors(), ids=label)
def test_every_published_order_is_a_table_with_the_published_numbers(vector: dict) -> None:
    """Split backwards, V and wave placements, two directions, fused tasks, recomputation, segments: one language."""
    table = as_table(vector)
    cost = vector["op_time"]
    shape = (table.p, table.v)
    timeline = simulate(
        table,
        Times(
            forward_s=np.full(shape, cost["F"]),
            backward_s=np.full(shape, cost["B"]),
            weight_s=np.full(shape, cost["W"]),
            recompute_s=np.full(shape, cost["R"]),
        ),
    )
    assert timeline.makespan_s == pytest.approx(vector["makespan"])
    assert timeline.bubble_makespan == pytest.approx(vector["bubble"], abs=1e-6)
    assert timeline.span_s == pytest.approx(vector["max_span"])
    assert peaks(table) == vector["peak_inflight_units"]


@pytest.mark.skipif(not VECTORS.exists(), reason="the published vectors are not beside the checkout")
@pytest.mark.parametrize("vector", all_vectors(), ids=label)
@given(data=st.data())
@settings(max_examples=5)
def test_every_published_order_is_simulated_exactly_for_unequal_durations(vector: dict, data: st.DataObject) -> None:
    table = as_table(vector)
    times = data.draw(unequal(table.p, table.v))
    expected = naive_worker_ends(table, times)
    np.testing.assert_allclose(simulate(table, times).worker_end_s, expected, rtol=1e-11)
    np.testing.assert_allclose(makespans(table, times), expected, rtol=1e-9)


@pytest.mark.skipif(not VECTORS.exists(), reason="the published vectors are not beside the checkout")
@pytest.mark.parametrize("vector", [v for v in all_vectors() if v["name"] in OURS], ids=label)
def test_our_orders_are_the_published_ones(vector: dict) -> None:
    schedule = OURS[vector["name"]]
    v = 1 if vector["name"].startswith("seq1f1b") else vector["v"]
    table = schedule.table(vector["p"], vector["m"], v)
    assert table.entries() == as_table(vector).entries()
    timeline = simulate(table, schedule.equal_times(vector["p"], v, recompute_s=1.0))
    assert timeline.makespan_s == pytest.approx(vector["makespan"])
    assert timeline.span_s == pytest.approx(vector["max_span"])
