"""Sentences of a verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright import estimate
from meshwright.planning.goodput import goodput
from meshwright.planning.whole_run import WholeRun
from meshwright.report.words.verdict import goodput_text, rate_heading, run_sentence


@pytest.mark.parametrize(("share", "said"), [(0.94, "94%"), (0.9951, "99.5%"), (0.99996, "99.9%"), (1.0, "100%")])
def test_a_run_that_fails_at_all_is_never_all_training(share: float, said: str) -> None:
    assert goodput_text(replace(goodput(64, None, 1.0), share=share)).startswith(f"{said} goodput")


def test_the_price_of_a_run_is_the_sum_of_what_it_names() -> None:
    run = WholeRun(
        tokens=1e11,
        steps=1e4,
        days=10.0,
        days_low=9.0,
        days_high=11.0,
        goodput=goodput(64, None, 1.0),
        device_hours=10_000.0,
        price=25_000.0,
        price_per_device_hour=2.0,
    )
    assert run_sentence(run).endswith("25,000 USD (20,000 at 2.00 USD per device-hour, 5,000 for links)")
    assert run_sentence(replace(run, price=20_000.0)).endswith("20,000 USD at 2.00 USD per device-hour")


@pytest.mark.parametrize(("gpus", "heading"), [("8xTPU-v5p", "tok/s/chip"), ("8xH100", "tok/s/GPU")])
def test_rates_are_by_chip_or_by_gpu(gpus: str, heading: str) -> None:
    document = estimate("llama-3.1-8b", plan="dp8.fsdp.mbs1.rc-full", gpus=gpus).to_dict()
    assert rate_heading(document["plans"]) == heading
