"""Ranges and ties from the errors of runs: quantiles under doubts, pairs in order."""

from __future__ import annotations

import json

import numpy as np
import pytest

from meshwright.calibrate.coverage import LEVEL, quantile_weights, within_sources
from meshwright.calibrate.pairs import isotonic
from meshwright.library.calibration import PACKAGED

pytest.importorskip("scipy")


def test_weights_are_the_quantile_of_each_kind_of_run() -> None:
    random = np.random.default_rng(0)
    doubted = np.repeat([0.0, 1.0], 400)
    errors = np.abs(random.normal(0.0, np.where(doubted == 1, 0.15, 0.05)))
    found = quantile_weights(np.stack([np.ones(800), doubted], axis=1), errors, np.ones(800))

    widths = np.exp(found[0]), np.exp(found.sum())
    assert widths == pytest.approx((1.645 * 0.05, 1.645 * 0.15), rel=0.15)
    for kind, width in zip((0.0, 1.0), widths, strict=True):
        assert np.mean(errors[doubted == kind] <= width) == pytest.approx(LEVEL, abs=0.02)


def test_a_doubt_without_effect_or_with_the_wrong_one_gets_no_weight() -> None:
    errors = np.abs(np.random.default_rng(1).normal(0.0, 0.1, 300))
    doubt = (errors < 0.05).astype(float)

    assert quantile_weights(np.stack([np.ones(300), doubt], axis=1), errors, np.ones(300))[1] == 0.0


def test_what_a_source_has_in_common_is_not_its_runs_own() -> None:
    sources = np.repeat(["a", "b"], 50)
    own = np.random.default_rng(2).normal(0.0, 0.05, 100)

    assert within_sources(own + np.where(sources == "a", 0.3, -0.2), sources) == pytest.approx(0.05, rel=0.3)


def test_pools_rise_and_keep_the_mean() -> None:
    values, weights = np.array([0.5, 0.9, 0.6, 0.8]), np.array([1.0, 1.0, 2.0, 1.0])
    found = isotonic(values, weights)

    assert np.all(np.diff(found) >= 0)
    assert found == pytest.approx([0.5, 0.7, 0.7, 0.8])
    assert found @ weights == pytest.approx(values @ weights)


def test_the_packaged_ranges_hold_for_sources_that_were_left_out() -> None:
    left_out = json.loads(PACKAGED.read_text("utf-8"))["ranges"]["left_out"]

    assert left_out["inside"] > 0.88
    assert left_out["median_high_over_low"] < 1.65
