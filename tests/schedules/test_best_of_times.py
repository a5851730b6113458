"""`schedule best`: times and memory from a file or equal stages, one answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.schedules.best_of_times import run_best_schedule
from meshwright.schedules.equal_stages import run_schedule

STAGES = """forward_s,input_s,weight_s,activation_bytes,capacity_bytes
1.0,1.0,1.0,4e9,20e9
1.5,1.6,1.4,4e9,20e9
1.2,1.1,1.0,4e9,20e9
"""


def test_a_file_of_stages(tmp_path: Path) -> None:
    path = tmp_path / "stages.csv"
    path.write_text(STAGES)
    found = run_best_schedule(None, 6, times_file=path)
    document = found.to_dict()
    assert document["p"] == 3
    assert all(worker["peak_bytes"] <= 20e9 for worker in document["workers"])
    assert document["bound_s"] <= document["makespan_s"]
    assert document["gain"] >= 0


def test_equal_stages_without_room_for_more_than_1f1b() -> None:
    found = run_best_schedule(4, 8, 1, room=4, allow=["1f1b", "gpipe"], split=False)
    assert found.name == "1f1b"
    assert found.makespan_s == 33
    assert found.peak_bytes.tolist() == [4, 3, 2, 1]


def test_recomputation_is_part_of_the_backward() -> None:
    found = run_best_schedule(2, 4, 1, recompute_s=1.0, allow=["1f1b"], split=False)
    assert found.makespan_s == pytest.approx((4 + 2 - 1) * 4)


def test_contradictions_are_named_together(tmp_path: Path) -> None:
    path = tmp_path / "stages.csv"
    path.write_text(STAGES)
    with pytest.raises(InputError) as caught:
        run_best_schedule(4, 6, times_file=path, room=2)
    assert [problem.field for problem in caught.value.problems] == ["p", "room"]
    path.write_text(STAGES.replace("activation_bytes", "weight_bytes"))
    with pytest.raises(InputError, match="no column activation_bytes"):
        run_best_schedule(None, 6, times_file=path)


def test_dapple_has_two_policies() -> None:
    pb = run_schedule("dapple", 4, 16, parameters={"warmup": "pb"})
    assert pb.peak_activations == (7, 5, 3, 1)
    assert pb.timeline.makespan_s == run_schedule("1f1b", 4, 16).timeline.makespan_s
    with pytest.raises(InputError, match="pa or pb"):
        run_schedule("dapple", 4, 8, parameters={"warmup": "pc"})
    with pytest.raises(InputError, match="1f1b has it"):
        run_schedule("gpipe", 4, 8, parameters={"warmup": "pb"})
