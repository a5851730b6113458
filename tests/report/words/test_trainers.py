"""Trainers with the same answer stand on one line; one that runs nothing says why."""

from __future__ import annotations

from meshwright.planning.under_trainers import TrainerPlan
from meshwright.report.words.trainers import trainer_lines
from meshwright.units import GIB


def plan_of(trainer: str, *, fits: bool = True) -> dict[str, object]:
    return TrainerPlan(
        trainer=trainer,
        plan="dp2.fsdp.mbs1.gbs32",
        fits=fits,
        step_time_s=2.0,
        peak_memory_bytes=20 * GIB,
        capacity_bytes=24 * GIB,
    ).to_dict()


def test_equal_answers_share_a_line_in_the_order_of_the_first() -> None:
    other = TrainerPlan(trainer="bridge", why="no override of peft says so").to_dict()
    lines = trainer_lines([plan_of("axolotl"), other, plan_of("accelerate"), plan_of("deepspeed", fits=False)])
    assert lines == [
        ("axolotl, accelerate", "dp2.fsdp.mbs1.gbs32", "2 s", "20 of 24 GiB"),
        ("bridge", "no override of peft says so", "", ""),
        ("deepspeed", "dp2.fsdp.mbs1.gbs32", "does not fit", "20 of 24 GiB"),
    ]
