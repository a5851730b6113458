"""Formulas of kernels against timed ones: made tables come back, and the timed ones where they are at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.kernel_tables import Folder, Table
from benchmarks.kernels import fit, kind_of, predict

pytest.importorskip("scipy")


def products(level: float) -> Table:
    m, n, k = np.meshgrid([256, 1024, 4096, 16384], [1024, 4096, 12288], [1024, 4096, 16384])
    empty = np.zeros(m.size)
    table = Table(
        kind="GEMM",
        generation="Hopper",
        dtype="bf16",
        columns={"m": m.ravel().astype(float), "n": n.ravel().astype(float), "k": k.ravel().astype(float)},
        seconds=empty,
        owner=np.zeros(m.size, dtype=int),
    )
    burst = {"launch_us": 3.0, "memory": 0.85, "heat": 0.03, "level": np.full(m.size, level)}
    seconds = kind_of(table).seconds(table, burst)
    return Table(
        kind=table.kind,
        generation=table.generation,
        dtype="bf16",
        columns=table.columns,
        seconds=seconds,
        owner=table.owner,
    )


def test_numbers_that_made_a_table_come_back() -> None:
    table = products(0.9)
    burst, levels = fit(table)
    assert np.exp(levels[0]) == pytest.approx(0.9, rel=0.01)
    assert burst["launch_us"] == pytest.approx(3.0, rel=0.05)
    assert np.abs(predict(table, burst, levels)).max() < 0.01


def test_a_wrong_shape_does_not() -> None:
    table = products(0.9)
    other = Table(
        kind="GEMM",
        generation="Hopper",
        dtype="bf16",
        columns=table.columns,
        owner=table.owner,
        seconds=table.seconds * (1 + 0.5 * (table.columns["k"] < 2000)),
    )
    assert np.quantile(np.abs(predict(other, *fit(other))), 0.9) > 0.05


MEASURED = Path(__file__).parents[2] / "shared" / "measured"


@pytest.mark.skipif(not (MEASURED / "aic").is_dir(), reason="the timed kernels are not here")
def test_products_of_timed_devices() -> None:
    tables = [one for one in Folder(MEASURED / "aic").tables() if one.kind == "GEMM" and one.generation == "Hopper"]
    assert [one.dtype for one in tables] == ["bf16", "fp8", "fp8-block"]
    for table in tables:
        out = table.left_out()
        assert 0.15 < out.mean() < 0.25
        assert np.median(np.abs(predict(table.take(out), *fit(table.take(~out))))) < 0.06
