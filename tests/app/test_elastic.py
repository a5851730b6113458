"""Plans for what a run has left are the planner's, of the same batch, and run here."""

from __future__ import annotations

import pytest

from meshwright.app.elastic import training_on
from meshwright.errors import InfeasibleError
from meshwright.runtime.plan_method import check_runs
from meshwright.runtime.timings import Machine
from meshwright.runtime.training.run import Training
from meshwright.specs.row import PlanRow
from meshwright.zoo.tiny import TINY
from tests.runtime.mixed_plans import Line, plan_of, stage, training_of
from tests.virtual_devices import eight_devices

eight_devices()

MACHINE = Machine(kind="cpu", platform="cpu", devices=8, memory_bytes=4e9, units=8)


def training(row: PlanRow, model: str = "gpt-tiny", hosts: int = 1) -> Training:
    return Training(
        spec=TINY.get(model), row=row, stage_layers=(4 // row.pp,) * row.pp, seq_len=32, hosts_per_mesh=hosts
    )


@pytest.mark.parametrize("model", ["mlp-tiny", "gpt-tiny", "moe-tiny"])
@pytest.mark.parametrize("devices", [2, 4, 7])
def test_the_batch_is_kept_and_most_devices_are_used(model: str, devices: int) -> None:
    found = training_on(training(PlanRow(pp=4, dp=2, mbs=1, gbs=32), model), devices, MACHINE)
    check_runs(found.row)
    assert found.row.gbs == 32
    # Whole workers of two devices are left; with three, pipelines of three stages use all of them.
    assert found.row.devices in {2: (2,), 4: (4,), 7: (4, 6)}[devices]
    assert sum(found.stage_layers) == 4
    assert len(found.stage_layers) == found.row.pp * found.row.vpp


def test_degrees_that_split_layers_stay() -> None:
    found = training_on(training(PlanRow(tp=2, pp=2, dp=2, mbs=1, gbs=32)), 4, MACHINE)
    assert found.row.tp == 2
    assert found.row.devices == 4


def test_meshes_stay_divisible_among_their_hosts() -> None:
    before = training(PlanRow(pp=2, dp=4, mbs=1, gbs=32), hosts=2)
    found = training_on(before, 6, MACHINE)
    assert found.row.devices // found.row.pp % 2 == 0
    assert found.hosts_per_mesh == 2


def test_as_many_devices_as_before_go_on_as_before() -> None:
    before = training(PlanRow(pp=2, dp=2, mbs=1, gbs=32))
    assert training_on(before, 4, MACHINE) is before


def test_no_plan_is_said() -> None:
    for devices in (0, 1):
        with pytest.raises(InfeasibleError, match="no plan of 8 samples"):
            training_on(training(PlanRow(pp=2, dp=2, mbs=2, gbs=8)), devices, MACHINE)


def test_a_mixed_plan_goes_on_without_the_devices_of_a_lost_worker() -> None:
    """The third worker stands on two L40S and two A100-40: both are gone, the four A100-80 train the batch."""
    before = training_of(plan_of(Line(1, 4, (stage(2, dp=2), stage(1, dp=2), stage(1, dp=4)))))
    found = training_on(before, 4, MACHINE, lost=(2,))
    assert found.global_batch == before.global_batch
    assert found.devices <= 4
    assert {group.device.name for group in found.job.cluster.groups} == {"A100-80"}
    assert training_on(before, 8, MACHINE) is before
