"""Post-mortem of a run that ran out of memory: which term was low, on which stage, and what would have fitted."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshwright as mw
from meshwright.app.check import CheckReport
from meshwright.report.words.post_mortem import post_mortem_lines
from meshwright.units import GIB

MODEL, PLAN, GPUS = "llama-3.1-70b", "tp8.pp4.mbs1.z1", "64xH100"


def message(*, rank: int, tried: float, allocated: float, unused: float, in_use: float, capacity: float = 79.1) -> str:
    return (
        f"[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried:.4f} GiB. GPU 0 has a "
        f"total capacity of {capacity:.2f} GiB of which 0.50 GiB is free. Including non-PyTorch memory, this process "
        f"has {in_use:.2f} GiB memory in use. Of the allocated memory {allocated:.2f} GiB is allocated by PyTorch, "
        f"and {unused:.2f} GiB is reserved by PyTorch but unallocated."
    )


def died(tmp_path: Path, plan: str = PLAN, **sizes: float) -> CheckReport:
    log = tmp_path / "rank.log"
    log.write_text(message(**sizes), "utf-8")
    return mw.check(MODEL, plan, gpus=GPUS, global_batch=1024, oom_log=log)


def tensors_gib(plan: str, stage: int = 0) -> float:
    found = mw.check(MODEL, plan, gpus=GPUS, global_batch=1024, search=False).estimate
    assert found is not None
    parts = dict(found.stages[stage].memory_bytes)
    return (sum(parts.values()) - parts["comm_buffers"] - parts["overhead"]) / GIB


def test_another_micro_batch_than_planned_is_recognised(tmp_path: Path) -> None:
    ran = tensors_gib("tp8.pp4.mbs2.z1")
    report = died(tmp_path, rank=3, tried=1.0, allocated=ran - 1.0, unused=1.5, in_use=ran + 3.0)
    found = report.post_mortem
    assert found is not None
    assert found.low is not None
    assert found.low.name == "tensors"
    assert found.low.short_bytes == pytest.approx((ran - tensors_gib(PLAN)) * GIB, rel=0.01)
    assert any("mbs 1 -> 2" in change for change in found.alike)
    assert report.exit_code == 5


def test_the_rank_says_the_stage(tmp_path: Path) -> None:
    for rank, stage in ((0, 0), (15, 0), (16, 1), (63, 3)):
        found = died(tmp_path, rank=rank, tried=1, allocated=40, unused=1, in_use=43).post_mortem
        assert found is not None
        assert found.stage_known
        assert found.stage.stage == stage


@pytest.mark.parametrize(
    ("low", "unused", "outside"), [("fragmentation", 30.0, 2.0), ("outside the allocator", 1.0, 30.0)]
)
def test_what_no_tensor_holds_is_told_apart(tmp_path: Path, low: str, unused: float, outside: float) -> None:
    held = tensors_gib(PLAN) - 2
    in_use = held + unused + outside
    found = died(tmp_path, rank=0, tried=1, allocated=held, unused=unused, in_use=in_use).post_mortem
    assert found is not None
    assert found.low is not None
    assert found.low.name == low
    assert found.alike == ()


def test_repairs_leave_room_for_what_the_run_took_more(tmp_path: Path) -> None:
    report = died(tmp_path, rank=0, tried=4, allocated=70, unused=1, in_use=77)
    assert report.post_mortem is not None
    assert report.repairs
    for repair in report.repairs:
        assert repair.peak_memory_bytes + report.post_mortem.short_bytes <= repair.capacity_bytes


def test_the_tensor_that_was_asked_for_is_named(tmp_path: Path) -> None:
    """The last stage's logits: 4,096 tokens x 128,256 / 8 words in 32 bits."""
    tried = 4096 * 128256 / 8 * 4 / GIB
    found = died(tmp_path, rank=63, tried=tried, allocated=70, unused=1, in_use=77).post_mortem
    assert found is not None
    assert "logits in 32 bits" in found.asked_for


def test_a_smaller_device_than_planned_is_said(tmp_path: Path) -> None:
    report = died(tmp_path, rank=0, tried=1, allocated=34, unused=1, in_use=38, capacity=39.6)
    assert report.post_mortem is not None
    assert any("this device has 39.6 GiB" in line for line in post_mortem_lines(report.post_mortem))
    document = report.to_dict()["post_mortem"]
    assert document["capacity_bytes"] == pytest.approx(39.6 * GIB)


def test_a_difference_below_the_rounding_of_the_message_is_none(tmp_path: Path) -> None:
    terms = died(tmp_path, rank=3, tried=1, allocated=20, unused=0.5, in_use=30).post_mortem
    assert terms is not None
    outside = next(term for term in terms.terms if term.name == "outside the allocator")
    near = 20.5 + (outside.predicted_bytes / GIB) + 0.01
    found = died(tmp_path, rank=3, tried=1, allocated=20, unused=0.5, in_use=near).post_mortem
    assert found is not None
    assert found.low is None
    assert any(line.startswith("no term was predicted too low") for line in post_mortem_lines(found))
