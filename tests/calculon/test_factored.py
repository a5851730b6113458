"""Executions that share layouts and settings: priced and refused as row by row, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.calculon import factored, model
from meshwright.calculon.acceptance import reject_factored
from meshwright.calculon.executions import ExecutionColumns
from meshwright.calculon.factored import FactoredRows
from meshwright.calculon.inputs import NONE, Application, System
from meshwright.calculon.legality import reject
from meshwright.calculon.model import SearchColumns, price_for_search
from tests.calculon.spaces import SMALL, WIDE, a100, one_network, roofline, space_of

ROWS = 8_000
WORDS = replace(WIDE, structure_type="llama", kv_heads=8, vocab_size=32_000)

CASES = {
    "optimal": (SMALL, a100(), 32, 64, "optimal-execution"),
    "little memory": (SMALL, a100(8.0, 4.0), 32, 64, "optimal-execution"),
    "full, uneven stages": (WIDE, a100(), 16, 8, "full"),
    "roofline, vocabulary": (WORDS, roofline(a100()), 32, 64, "optimal-execution"),
    "one slow network": (WIDE, one_network(a100()), 16, 16, "optimal-execution"),
}
cases = pytest.mark.parametrize("case", CASES)


@pytest.fixture(autouse=True)
def share_anyhow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few executions have about as many settings."""
    monkeypatch.setattr(factored, "SHARED", 1)


def drawn(case: str) -> tuple[Application, System, ExecutionColumns]:
    app, system, procs, batch, name = CASES[case]
    return app, system, space_of(app, system, procs, batch, name).sample(ROWS, seed=7)


def both(
    monkeypatch: pytest.MonkeyPatch, app: Application, system: System, columns: ExecutionColumns, *, fixed: bool
) -> tuple[SearchColumns, SearchColumns]:
    """Row by row, and factored."""
    monkeypatch.setattr(model, "MANY_ROWS", columns.rows + 1)
    single = price_for_search(app, system, columns, fixed=fixed)
    monkeypatch.setattr(model, "MANY_ROWS", 1)
    assert FactoredRows.of(columns) is not None
    return single, price_for_search(app, system, columns, fixed=fixed)


@cases
@pytest.mark.parametrize("fixed", [False, True], ids=["as it is", "fixed"])
def test_prices_are_those_of_single_rows(monkeypatch: pytest.MonkeyPatch, case: str, fixed: bool) -> None:
    app, system, columns = drawn(case)
    single, shared = both(monkeypatch, app, system, columns, fixed=fixed)
    assert single.ok.any()
    for name in SearchColumns.__slots__:
        assert np.array_equal(getattr(single, name), getattr(shared, name)), name


def test_inference_is_priced_as_single_rows_are(monkeypatch: pytest.MonkeyPatch) -> None:
    app, system, columns = drawn("optimal")
    half = np.arange(columns.rows) % 2 == 0
    columns = replace(
        columns,
        training=half,
        activation_recompute=np.where(half, columns.activation_recompute, NONE).astype(np.int8),
        data_par_overlap=columns.data_par_overlap & half,
        optimizer_offload=columns.optimizer_offload & half,
    )
    single, shared = both(monkeypatch, app, system, columns, fixed=False)
    assert single.ok[~half].any()
    for name in SearchColumns.__slots__:
        assert np.array_equal(getattr(single, name), getattr(shared, name)), name


@cases
def test_rejections_are_those_of_single_rows(case: str) -> None:
    app, system, columns = drawn(case)
    numbers = np.random.default_rng(3)
    # Settings and layouts in any combination break rules that the space keeps.
    mixed = replace(
        columns,
        pipeline_interleaving=numbers.permutation(columns.pipeline_interleaving),
        optimizer_sharding=numbers.permutation(columns.optimizer_sharding),
        tensor_par_overlap=numbers.permutation(columns.tensor_par_overlap),
        seq_par_ag_redo=numbers.permutation(columns.seq_par_ag_redo),
        data_par=numbers.permutation(columns.data_par),
    )
    rows = FactoredRows.of(mixed)
    assert rows is not None
    found = reject_factored(app, system, rows)
    assert found is not None
    assert len(np.unique(found)) > 4
    assert np.array_equal(found, reject(app, system, mixed))


def test_values_without_meaning_are_left_to_single_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    app, system, columns = drawn("optimal")
    broken = replace(columns, tensor_par=np.where(np.arange(columns.rows) == 5, 0, columns.tensor_par))
    rows = FactoredRows.of(broken)
    assert rows is not None
    assert reject_factored(app, system, rows) is None
    single, shared = both(monkeypatch, app, system, broken, fixed=False)
    assert np.array_equal(single.reason, shared.reason)
    assert np.array_equal(single.total_time_s, shared.total_time_s)


def test_few_executions_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    _, _, columns = drawn("optimal")
    assert FactoredRows.of(columns.take(slice(0, 0))) is None
    assert FactoredRows.of(columns.take(slice(0, 64))) is None
