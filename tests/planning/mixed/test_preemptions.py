"""Spot nodes: what preemptions leave of the time decides between plans with them and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright import plan
from meshwright.app.plans.plan_set import PlanSet
from meshwright.errors import InputError
from meshwright.planning.goodput import goodput

FLEET = """
[[group]]
name = "own"
device = "H100"
nodes = 1

[[group]]
name = "spot"
device = "A100-80"
nodes = 1
preemptions_per_hour = {rate}
"""

TWO_VENDORS = """
[[group]]
name = "own"
device = "H100"
nodes = 2

[[group]]
name = "amd"
device = "MI300X"
nodes = 2

[[group]]
name = "spot"
device = "L40S"
nodes = 4
preemptions_per_hour = 0.5

[[group]]
name = "rack"
device = "H100"
nodes = 1
inter_gb_s = 3

[[link]]
between = ["own", "amd"]
gb_s = 12.5
transport = "gloo"
"""


def planned(folder: Path, rate: float, **asked: object) -> PlanSet:
    file = folder / "fleet.toml"
    file.write_text(FLEET.format(rate=rate))
    return plan("llama-3.2-1b", cluster=file, global_batch=256, seq_len=4096, top=3, **asked)


def groups_of(plans: PlanSet) -> set[str]:
    return {stage.group for stage in plans.best.estimate.stages}


def test_spot_nodes_are_used_as_long_as_preemptions_cost_less_than_they_save(tmp_path: Path) -> None:
    calm, rough = planned(tmp_path, 0.01), planned(tmp_path, 3.0)
    assert groups_of(calm) == {"own", "spot"}
    assert groups_of(rough) == {"own"}
    assert any("spot nodes are preempted 0.24 times a day" in line for line in calm.verdict.why)
    assert any("with spot nodes a step takes" in line and "72 times a day" in line for line in rough.verdict.why)
    assert any("lose more time to preemptions than they save" in line for line in rough.warnings)


def test_no_plan_on_spot_nodes_stands_first_because_a_framework_starts_it(tmp_path: Path) -> None:
    """Over two vendors no framework starts the best plan, and the one that it starts loses half of its time."""
    file = tmp_path / "fleet.toml"
    file.write_text(TWO_VENDORS)
    found = plan("mixtral-8x7b", cluster=file, global_batch=128, seq_len=4096, top=2)
    assert groups_of(found) == {"own", "amd"}
    without = next(line for line in found.verdict.why if line.startswith("without amd"))
    assert "slower" in without
    assert "no slower" not in without


def test_the_days_of_a_run_count_preemptions(tmp_path: Path) -> None:
    never, sometimes = (planned(tmp_path, rate, tokens="100B") for rate in (0.0, 0.05))
    assert never.run is not None
    assert sometimes.run is not None
    assert sometimes.run.goodput.preemptions_per_day == pytest.approx(24 * 0.05)
    assert sometimes.run.days > never.run.days
    assert "and 1.2 preemptions a day" in sometimes.verdict.text


def test_a_preemption_stops_a_job_as_a_failure_does() -> None:
    failing = goodput(100, None, 1.0)
    spot = goodput(100, None, 1.0, preemptions_per_hour=100 * 2e-5)
    assert spot.share < failing.share
    assert spot.share == pytest.approx(goodput(200, None, 1.0).share)


@pytest.mark.parametrize("rate", ["-0.1", '"often"', "1e9"])
def test_rates_that_no_node_has_are_refused(tmp_path: Path, rate: str) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(FLEET.format(rate=rate))
    with pytest.raises(InputError, match="preemptions_per_hour"):
        plan("llama-3.2-1b", cluster=file)


def _priced(folder: Path, *, spot: float, rate: float = 0.02, **asked: object) -> PlanSet:
    text = FLEET.format(rate=f"{rate}\nprice_per_device_hour = {spot}")
    file = folder / "priced.toml"
    file.write_text(text.replace("nodes = 1\n", "nodes = 1\nprice_per_device_hour = 3.0\n", 1))
    return plan("llama-3.2-1b", cluster=file, global_batch=256, seq_len=4096, top=3, **asked)


def test_the_quickest_plan_names_spot_nodes_that_train_a_step_for_clearly_less(tmp_path: Path) -> None:
    (line,) = [line for line in _priced(tmp_path, spot=0.5).verdict.why if line.startswith("cheaper:")]
    assert line.startswith("cheaper: on 8 spot a step takes")
    assert "preemptions counted" in line
    assert line.endswith("less; --objective cost looks for more")


@pytest.mark.parametrize(
    ("spot", "asked"),
    [(3.0, {}), (0.5, {"objective": "cost"})],
    ids=["equal prices", "cheapest asked for"],
)
def test_no_cheaper_plan_is_named_for_equal_prices_or_beside_the_cheapest(
    tmp_path: Path, spot: float, asked: dict[str, str]
) -> None:
    found = _priced(tmp_path, spot=spot, **asked)
    assert [line for line in found.verdict.why if line.startswith("cheaper:")] == []
