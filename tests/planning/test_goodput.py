"""The share of a run that trains."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import estimate
from meshwright.errors import InputError
from meshwright.planning.goodput import USUAL, goodput, staffed_share, training_share
from meshwright.specs.failures import NEVER, Failures
from meshwright.units import HOUR_S


def simulated_share(rate_per_s: float, restart_s: float, interval_s: float, stall_s: float, intervals: int) -> float:
    """Failures drawn one after the other; a failure in a restart begins the restart again."""
    draw = random.Random(7)
    wall_s = 0.0
    for _ in range(intervals):
        needed_s = interval_s + stall_s
        while True:
            until_s = draw.expovariate(rate_per_s)
            if until_s >= needed_s:
                wall_s += needed_s
                break
            wall_s += until_s
            needed_s = restart_s + interval_s + stall_s
    return intervals * interval_s / wall_s


@pytest.mark.parametrize("rate_per_hour", [0.05, 0.3, 1.0])
def test_the_formula_is_the_mean_of_a_simulated_run(rate_per_hour: float) -> None:
    """Work that restarts with its interval: Daly's formula counts the restart in every attempt after a failure."""
    times = {"restart_s": 600.0, "interval_s": 1800.0, "stall_s": 20.0}
    found = training_share(rate_per_hour / HOUR_S, **times)
    assert found == pytest.approx(simulated_share(rate_per_hour / HOUR_S, **times, intervals=20_000), abs=0.01)


@pytest.mark.parametrize(
    ("devices", "failures", "published"),
    [
        # Llama 3 405B: over 90% effective, 419 unexpected stops in 54 days (arXiv 2407.21783, section 3.3.4).
        (16_384, Failures(rate_per_device_hour=419 / (54 * 24 * 16_384)), 0.90),
        # MegaScale: over 90% on more than 10,000 devices, recovered within 15 minutes (arXiv 2402.15627, section 6.3).
        (12_288, Failures(restart_s=600.0), 0.90),
    ],
)
def test_published_runs_are_met_within_four_points(devices: int, failures: Failures, published: float) -> None:
    assert goodput(devices, failures, 0.1).share == pytest.approx(published, abs=0.04)


def test_what_is_stated_has_no_range() -> None:
    stated = Failures(rate_per_device_hour=2e-5, restart_s=600, interval_s=1800, stall_s=1)
    found = goodput(1024, stated, 0.0)
    assert found.low == pytest.approx(found.share) == pytest.approx(found.high)
    assert found.assumed == ()
    assert goodput(1024, None, 0.0).assumed == tuple(USUAL)


def test_nothing_interrupts_a_run_without_failures() -> None:
    assert goodput(16_384, NEVER, 5.0).share == 1.0
    assert goodput(64, Failures(rate_per_device_hour=0.0, interval_s=90.0), 10.0).share == pytest.approx(0.9)


@given(
    rate=st.floats(1e-9, 1),
    restart_s=st.floats(1, 1e5),
    interval_s=st.floats(1, 1e5),
    stall_s=st.floats(0, 1e4),
)
def test_more_failures_never_train_more(rate: float, restart_s: float, interval_s: float, stall_s: float) -> None:
    shares = [training_share(each / HOUR_S, restart_s, interval_s, stall_s) for each in (0.0, rate, 2 * rate)]
    assert all(0 <= share <= 1 + 1e-12 and math.isfinite(share) for share in shares)
    assert shares[0] >= shares[1] * (1 - 1e-12)
    assert shares[1] >= shares[2] * (1 - 1e-12)


def test_a_range_holds_its_middle_and_widens_with_devices() -> None:
    shares = [goodput(devices, None, 0.1) for devices in (8, 512, 16_384, 100_000)]
    assert all(found.low <= found.share <= found.high <= 1 for found in shares)
    assert [found.share for found in shares] == sorted((found.share for found in shares), reverse=True)


def drawn_share(mean: float, spares: int, draws: int = 20_000) -> float:
    """Nodes in repair at random moments: failures of the last repair time."""
    draw, enough = random.Random(3), 0
    for _ in range(draws):
        away, at = 0, draw.expovariate(mean)
        while at < 1:
            away, at = away + 1, at + draw.expovariate(mean)
        enough += away <= spares
    return enough / draws


@pytest.mark.parametrize(("mean", "spares"), [(0.5, 0), (0.5, 1), (3.0, 4)])
def test_spares_stand_in_for_nodes_in_repair(mean: float, spares: int) -> None:
    stated = Failures(repair_s=mean * 1e6, spares=spares)
    assert staffed_share(1e-6, stated, 0.01) == pytest.approx(drawn_share(mean, spares), abs=0.01)


def test_planning_again_with_fewer_nodes_loses_their_speed_alone() -> None:
    """Without spares one of 16 nodes in repair on average leaves 15/16 of the speed, and waiting far less."""
    rate, day_s = 1 / (16 * 8 * 24.0), 86_400.0
    found = {
        short: goodput(128, Failures(rate_per_device_hour=rate / 16, repair_s=16 * day_s / 16, short=short), 0.0)
        for short in ("wait", "replan")
    }
    mean = rate / 16 * 128 * 24
    assert found["replan"].staffed == pytest.approx(1 - mean / 16, rel=1e-6)
    assert found["wait"].staffed == pytest.approx(math.exp(-mean), rel=1e-6)
    assert goodput(128, Failures(rate_per_device_hour=rate / 16), 0.0).staffed == 1.0


def test_more_spares_never_train_less() -> None:
    stated = {"rate_per_device_hour": 2e-5, "repair_s": 3 * 86_400.0}
    shares = [goodput(16_384, Failures(**stated, spares=spares), 0.0).share for spares in (0, 8, 32, 64)]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(goodput(16_384, Failures(rate_per_device_hour=2e-5), 0.0).share, abs=0.001)
    with pytest.raises(InputError, match="repair"):
        Failures(spares=2)


@pytest.mark.parametrize(
    "spec",
    [
        "rate=200%/year,repair=400000h",  # more nodes in repair than there are
        "rate=200000%/year,restart=10min",  # seconds between failures, minutes of restart
    ],
)
def test_a_run_that_never_ends_is_refused(spec: str) -> None:
    with pytest.raises(InputError, match="never ends"):
        estimate("llama-3.1-70b", "tp8.pp4.z1", gpus="4096xH100", tokens="1T", failures=spec)
