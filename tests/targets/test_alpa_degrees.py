"""Alpa's method of three degrees: as many stages of equal cost, each of data and operator ranks."""

from __future__ import annotations

import pytest

from meshwright.formats.launch_file import LaunchFile
from meshwright.targets import TARGETS, target_of_file

MODULE = """\
import alpa

GLOBAL_BATCH = 128
SEQ_LEN = 1024
method = alpa.get_3d_parallel_method(ARGUMENTS)
step = alpa.parallelize(train_step, method=method)
"""
DEGREES = "num_micro_batches=16, data_parallel=-1, operator_parallel=2, pipeline_parallel=4"


def read(arguments: str, devices: int | None = 16) -> LaunchFile:
    text = MODULE.replace("ARGUMENTS", arguments)
    assert target_of_file("train.py", text) == "alpa"
    return TARGETS["alpa"].read({"train.py": text}, devices)


@pytest.mark.parametrize(
    "arguments", [DEGREES, "16, -1, 2, 4", "16, data_parallel=2, operator_parallel=2, pipeline_parallel=4"]
)
def test_degrees_are_a_plan_that_shards_as_its_zero_2(arguments: str) -> None:
    row = read(arguments).row
    assert row is not None
    assert (row.pp, row.tp, row.dp, row.sharding, row.mbs, row.gbs) == (4, 2, 2, "z2", 4, 128)
    assert row.recompute == "none"


def test_a_value_of_the_program_is_asked_for() -> None:
    found = read(DEGREES.replace("=4", "=arguments.stages"))
    assert found.row is None
    assert [(one.field, one.fix) for one in found.questions] == [
        ("pipeline_parallel", "give --set pipeline_parallel=VALUE")
    ]


@pytest.mark.parametrize(
    ("arguments", "devices", "field"),
    [
        (DEGREES, None, "data_parallel"),
        (DEGREES, 12, "data_parallel"),
        (DEGREES.replace("16", "48"), 16, "data_parallel"),
        (DEGREES.replace("=4", "=0"), 16, "pipeline_parallel"),
    ],
)
def test_degrees_that_go_into_no_job_are_told(arguments: str, devices: int | None, field: str) -> None:
    found = read(arguments, devices)
    assert found.row is None
    assert [problem.field for problem in found.problems] == [field]
