"""`--failures` as text."""

from __future__ import annotations

import pytest

from meshwright.errors import InputError
from meshwright.fields.failures import FailureSpec
from meshwright.specs.failures import NEVER, Failures


def read(text: object) -> Failures:
    return FailureSpec().read("--failures", text)


def test_all_parts() -> None:
    found = read("rate=2e-5/h, restart=10min,every=30min,stall=5s")
    assert found == Failures(rate_per_device_hour=2e-5, restart_s=600, interval_s=1800, stall_s=5)
    away = read("rate=2e-5/h,repair=24h,spares=2,short=replan")
    assert (away.repair_s, away.spares, away.short) == (86_400.0, 2, "replan")
    assert read("none") is NEVER
    assert read(found) is found


@pytest.mark.parametrize("text", ["18%/year", "0.18/year", "0.18 per year", "1.5%/month"])
def test_percentages_fractions_and_times_are_told_apart(text: str) -> None:
    assert read(f"rate={text}").rate_per_device_hour == pytest.approx(0.18 / 8766, rel=0.01)


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(InputError) as caught:
        read("rate=18%,restart=soon,often,mtbf=3h,every=1h,every=2h")
    assert len(caught.value.problems) == 5
    assert "unit of time" in str(caught.value)


@pytest.mark.parametrize("value", ["", "rate=-1/h", "rate=1e99/h", "rate=1/fortnight", "stall=0", 3, b"none"])
def test_what_is_none(value: object) -> None:
    with pytest.raises(InputError):
        read(value)


def test_a_percentage_without_its_sign_is_asked_about() -> None:
    with pytest.raises(InputError, match="18% is 18%/year") as caught:
        read("rate=18/year")
    assert "rate=18%/year" in caught.value.problems[0].fix
    assert read("rate=0.0021/h").rate_per_device_hour == 0.0021
