"""Every reason has a sentence, and says its facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.planning.objectives import OBJECTIVES
from meshwright.planning.reason import Reason, idle_reason
from meshwright.planning.reasons import plan_reasons, price_reason, search_reason
from meshwright.report.words.reasons import IDLE, LEAST_PART, SENTENCES, reason_text
from meshwright.search.result import Certificate
from tests.app.questions import best_plans


def certificate(*, optimal: bool, bound_s: float | None) -> Certificate:
    known = best_plans().certificate
    assert known is not None
    return replace(known, optimal=optimal, bound_step_time_s=bound_s)


def test_the_reasons_of_a_plan_are_data_and_sentences() -> None:
    best = best_plans()[0]
    reasons = list(plan_reasons(best.job, best.estimate, best_plans().certificate))
    assert {reason.kind for reason in reasons} <= set(SENTENCES)
    time, memory = reasons[0], reasons[1]
    assert time.to_dict()["parts"] == dict(best.estimate.breakdown_s)
    shares = [float(part.rsplit(" ", 1)[1].removesuffix("%")) for part in reason_text(time).split(": ")[1].split(", ")]
    assert sum(shares) == pytest.approx(100.0)
    assert reason_text(memory).endswith("GiB free")
    assert 0 < LEAST_PART < 0.05


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_says_what_a_runner_up_loses_by(name: str) -> None:
    first, second = best_plans()[0].estimate, best_plans()[1].estimate
    reason = OBJECTIVES[name].difference(first, second)
    assert reason.kind in SENTENCES
    assert reason_text(reason)


def test_a_search_says_its_lower_bound_and_gap() -> None:
    assert "optimal" in reason_text(search_reason(certificate(optimal=True, bound_s=8.0), "time", 8.0))
    open_ended = reason_text(search_reason(certificate(optimal=False, bound_s=9.0), "time", 12.0))
    assert open_ended.endswith("lower bound 9 s (gap 25%)")
    assert "quickest of" in reason_text(search_reason(certificate(optimal=True, bound_s=8.0), "cost", 8.0))
    assert "not searched" in reason_text(search_reason(certificate(optimal=True, bound_s=8.0), "memory", 8.0))


def test_a_price_says_its_devices_and_that_idle_ones_are_not_rented() -> None:
    job = best_plans()[0].job
    name = job.cluster.groups[0].name
    part = reason_text(price_reason(1.0, 10.0, {name: 4}, job.cluster))
    assert part.startswith("price of a step: 1 USD")
    assert part.endswith("idle devices are not rented")
    assert not reason_text(price_reason(1.0, 10.0, {name: 8}, job.cluster)).endswith("rented")


def test_idle_devices_are_said_in_one_way() -> None:
    facts = {
        "slower": {"plan": "tp8", "ratio": 0.12},
        "too large": {"space": 12},
        "factor": {"factor": 61, "axes": {"dp": ("batch", 1024)}},
        "limits": {"limits": "5 s a step"},
        "cheaper": {"saved": 0.25},
        "less energy": {"saved": 0.25},
        "strangers": {"libraries": ("RCCL", "NCCL")},
    }
    for why in IDLE:
        text = reason_text(idle_reason(60, 61, why, **facts.get(why, {})))
        assert text.startswith("60 of 61 devices used, 1 idle")
    assert "not rented" in reason_text(idle_reason(4, 8, "cheaper", rented=True, saved=0.25))
    assert "61 is divisible by 61" in reason_text(idle_reason(60, 61, "factor", **facts["factor"]))


def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(KeyError):
        reason_text(Reason.of("weather"))
