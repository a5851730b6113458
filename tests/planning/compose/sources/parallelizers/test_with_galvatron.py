"""Galvatron's search engine behind the seam.

Where MESHWRIGHT_GALVATRON_PYTHON names an interpreter that has it, the engine itself is asked; the other tests hold
what it is asked, and what happens where it is not there.
"""

from __future__ import annotations

import os
import sys

import pytest

from meshwright.errors import UnsupportedError
from meshwright.planning.compose.sources.parallelizers.guard import Guarded
from meshwright.planning.compose.sources.parallelizers.with_galvatron import VARIABLE, galvatron
from tests.planning.compose.sources.parallelizers.slices import island_of, job, slice_of

INPUTS = job()
INSTALLED = os.environ.get(VARIABLE, "")


def test_where_it_is_must_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(UnsupportedError, match="pip install --no-deps hetu-galvatron"):
        galvatron()


def test_an_interpreter_without_it_is_a_skip_that_says_how_to_get_it() -> None:
    guarded = Guarded(inner=galvatron(sys.executable))
    assert guarded.plan(slice_of(INPUTS, 2), island_of(INPUTS), INPUTS.workload, 8) == []
    assert "Galvatron is not installed here" in guarded.skips[0].reason


def test_experts_are_refused_without_asking() -> None:
    inputs = job("mixtral-8x7b")
    guarded = Guarded(inner=galvatron(sys.executable))
    assert guarded.plan(slice_of(inputs, 2), island_of(inputs), inputs.workload, 8) == []
    assert "does not know this slice (its search plans equal dense layers)" in guarded.skips[0].reason


def test_the_profile_is_of_one_layer_and_one_sequence() -> None:
    question = galvatron(sys.executable).question
    assert question is not None
    profile = question(slice_of(INPUTS, 2, head=True), island_of(INPUTS), INPUTS.workload, 8)["profile"]
    layer = next(INPUTS.model.layers())
    assert profile["layer"]["parameters"] == layer.parameters(INPUTS.model.hidden)
    assert profile["edges"]["parameters"] == pytest.approx(INPUTS.model.head_parameters, rel=1e-3)
    least_s = 2 * layer.parameters(INPUTS.model.hidden) * 2048 / 989.4e12
    assert least_s < profile["layer"]["forward_s"] < 4 * least_s
    assert profile["allreduce_gb_s"].keys() == {"2", "4", "8"}


@pytest.mark.skipif(not INSTALLED, reason=f"{VARIABLE} names no interpreter that has Galvatron")
def test_the_engine_plans_a_slice() -> None:
    guarded = Guarded(inner=galvatron())
    found = guarded.plan(slice_of(INPUTS, 4, head=True), island_of(INPUTS), INPUTS.workload, 8)
    assert not guarded.skips
    assert [plan.devices for plan in found] == [1, 2, 4, 8]
    times = [plan.forward_s for plan in found]
    assert times == sorted(times, reverse=True)
    assert all(plan.backward_s >= 1.9 * plan.forward_s for plan in found)
