"""The best plan under each trainer, in words: those with the same answer together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.units import of_capacity, seconds

TrainerLine = tuple[str, str, str, str]


def trainer_lines(trainers: Sequence[Mapping[str, Any]]) -> list[TrainerLine]:
    """One line per answer: trainers, plan or why they run none, time of a step, memory.

    Args:
        trainers: the `trainers` of a plan set as data.

    Returns:
        `("accelerate, axolotl", "dp2.fsdp.mbs1.gbs32.rc-full", "48.6 s", "21.6 of 23.6 GiB")`; without a plan that fits
        `does not fit` stands for the time.
    """
    alike: dict[tuple[str, str, str], list[str]] = {}
    for one in trainers:
        alike.setdefault(_answer(one), []).append(one["trainer"])
    return [(", ".join(names), *answer) for answer, names in alike.items()]


def trainers_heading(trainers: Sequence[Mapping[str, Any]]) -> str:
    """What stands above them."""
    return "Trainers" if not any(one["fits"] for one in trainers) else "Trainers (--target NAME asks one alone)"


def _answer(one: Mapping[str, Any]) -> tuple[str, str, str]:
    if one["plan"] is None:
        return one["why"], "", ""
    time = seconds(one["step_time_s"]) if one["fits"] else "does not fit"
    return one["plan"], time, of_capacity(one["peak_memory_bytes"], one["capacity_bytes"])
