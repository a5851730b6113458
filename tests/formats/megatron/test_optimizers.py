"""Optimizers as options, and back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.errors import UnsupportedError
from meshwright.formats.megatron import megatron_script
from meshwright.formats.megatron.read import read_flags
from meshwright.schedules.plan_rows import plan_of
from meshwright.specs import PlanRow
from tests.formats.jobs import job

PLAN = plan_of(PlanRow(dp=2, sharding="z1", gbs=2), [4])


@pytest.mark.parametrize("name", ["adam", "sgd", "sgd-momentum", "muon", "muon:steps=7", "lion", "soap"])
def test_every_optimizer_of_megatron_survives_its_options(name: str) -> None:
    made = job(PLAN)
    read = read_flags(megatron_script(replace(made, workload=replace(made.workload, optimizer=name))).text)
    assert (read.problems, read.workload["optimizer"]) == ((), name)


@pytest.mark.parametrize("name", ["adafactor", "adamw-8bit", "galore", "shampoo", "soap:every=5"])
def test_others_are_refused_with_those_it_has(name: str) -> None:
    made = job(PLAN)
    with pytest.raises(UnsupportedError, match="it has adam, adamw, sgd, sgd-momentum, muon, lion, soap"):
        megatron_script(replace(made, workload=replace(made.workload, optimizer=name)))


def test_what_of_muon_is_not_priced_is_said() -> None:
    words = ["--optimizer", "dist_muon", "--muon-tp-mode", "blockwise", "--muon-scalar-optimizer", "lion"]
    read = read_flags(words, devices=1)
    assert read.workload["optimizer"] == "muon"
    assert {"--muon-tp-mode", "--muon-scalar-optimizer"} <= {problem.field for problem in read.problems}
