"""What the features of a homogeneous planner are worth on mixed clusters, and planning time: `benchmarks.mixed`.

The full planner against itself with expert parallelism, sharding (ZeRO, FSDP) and context parallelism forbidden, and
against the best kind of device by itself: those near the quickest are searched exhaustively. Seconds of planning are
processor time.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

from benchmarks import ROOT, markdown_table
from benchmarks.timing import Line
from meshwright import plan
from meshwright.app.replan import replan
from meshwright.fields.job import JobFields
from meshwright.planning.compose.composer import COMPOSED
from meshwright.planning.mixed.native import NativeSource
from meshwright.planning.question.job_inputs import job_inputs
from meshwright.search.space import Space
from meshwright.specs.cluster import ClusterSpec
from meshwright.units import GIB, KIB, significant

JOBS = (
    ("deepseek-v3", "256xH100,256xA100-80,256xH800"),
    ("deepseek-v3", "256xH100,256xA100-80,256xL40S"),
    ("mixtral-8x22b", "64xH100,64xA100-80,64xA100-40"),
    ("mixtral-8x22b", "64xH100,64xA100-80,64xL40S"),
    ("mixtral-8x22b", "32xH100,64xA100-40,64xL40S"),
)
"""Mixtures of experts on three kinds of device."""
FORBIDDEN = ("ep", "sharding", "cp")
SPEED = (
    ("llama-3-8b", "8xA100-80,8xV100-32", 64, "fp16", 0.3),
    ("llama-3.1-70b", "48xH100,40xA100-80,40xL40S", 1024, "bf16", 1.0),
    ("llama-3.1-70b", "256xH100,256xA100-80,256xH800,256xL40S", 1024, "bf16", 5.0),
    ("llama-3.1-405b", "4096xH100,4096xA100-80,2048xH800,2048xH200,2048xB200,2048xL40S", 1024, "bf16", 60.0),
)
"""Model, cluster, batch, format, and the seconds that composing should take at most."""
REPLANNED = ("llama-3.1-70b", "1024xH100", "8xH100", 1.0)
"""Model, cluster, what it loses, and the seconds that planning again should take at most."""


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=4, metavar=("MODEL", "GPUS", "GBS", "DTYPE"), help="time one plan, here")
    parser.add_argument("--job", metavar="MODEL", help="only the jobs of this model")
    parser.add_argument("--only", choices=("features", "speed"))
    options = parser.parse_args()
    if options.one:
        print(*_timed(*options.one))
        return
    if options.only != "speed":
        jobs = [job for job in JOBS if options.job in (None, job[0])]
        rows = [_features(model, gpus) for model, gpus in jobs]
        print(
            markdown_table(
                ("model, cluster", "full", "without ep, sharding, cp", "gain", "one kind alone", "gain"), rows
            )
        )
        print()
    if options.only != "features":
        print(
            markdown_table(
                ("model, cluster", "composing", "whole answer", "memory"), [_speed(*one[:4]) for one in SPEED]
            )
        )


def mixed_lines() -> list[Line]:
    """Planning over several kinds of device, and again after a loss, without the start of a process."""
    lines = []
    for model, gpus, batch, dtype, target in SPEED:
        composed_s, whole_s, _ = _apart(model, gpus, batch, dtype)
        note = (
            f"processor time of the search over all islands; {significant(whole_s)} s with each kind alone, each left "
            f"out, and what matters most"
        )
        lines.append(Line(f"`plan {model} --gpus {gpus}`, planning", composed_s, target, "s", note=note))
    model, gpus, lost, target = REPLANNED
    said = f"`plan --replan-from` {model} on {gpus}, {lost} lost, planning"
    return [*lines, Line(said, _replanned_s(), target, "s", note="processor time, plan and state that has to move")]


def _replanned_s() -> float:
    """The second of two, as in a process that stays."""
    model, gpus, lost, _ = REPLANNED
    before = plan(model, gpus=gpus)[0]
    for _ in range(2):
        started = time.process_time()
        replan(before.job, lost=lost)
        seconds = time.process_time() - started
    return seconds


def _features(model: str, gpus: str) -> list[str]:
    full, bare = plan(model, gpus=gpus), plan(model, gpus=gpus, forbid=FORBIDDEN)
    inputs = job_inputs(
        JobFields(
            model=model,
            cluster=None,
            gpus=gpus,
            seq_len=None,
            global_batch=None,
            tokens_per_step=None,
            dtype="bf16",
            optimizer="adam",
            attention_kernel="flash",
            expert_load=1.0,
            tokens=None,
            price=None,
        )
    )
    source = NativeSource(inputs, _everything)
    near = {part: one.step_time_s for part in source.whole for one in source.alone(part)}
    alone = {
        inputs.cluster.groups[part.group].name: one.step_time_s
        for part, step_s in near.items()
        if step_s <= 1.1 * min(near.values())
        for one in source.alone(part, exhaustive=True)
    }
    step_s, bare_s = full[0].estimate.step_time_s, bare[0].estimate.step_time_s
    best = min(alone, key=lambda name: alone[name])
    said = gpus.replace("x", " ").replace(",", " + ")
    return [
        f"{model}, {said}",
        f"{significant(step_s)} s",
        f"{significant(bare_s)} s",
        f"{bare_s / step_s:.2f}x",
        f"{significant(alone[best])} s ({best})",
        f"{alone[best] / step_s:.2f}x",
    ]


def _everything(part: ClusterSpec) -> Space:
    """The whole space, whatever the part."""
    return Space()


def _speed(model: str, gpus: str, batch: int, dtype: str) -> list[str]:
    composed_s, whole_s, memory_bytes = _apart(model, gpus, batch, dtype)
    said = gpus.replace("x", " ").replace(",", " + ")
    return [
        f"{model}, {said}",
        f"{significant(composed_s)} s",
        f"{significant(whole_s)} s",
        f"{significant(memory_bytes / GIB)} GiB",
    ]


def _apart(model: str, gpus: str, batch: int, dtype: str) -> list[float]:
    """`_timed` in a process of its own, so that its memory is its own."""
    command = [sys.executable, "-m", "benchmarks.mixed", "--one", model, gpus, str(batch), dtype]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [float(word) for word in printed.split()]


def _timed(model: str, gpus: str, batch: str, dtype: str) -> tuple[float, float, float]:
    """Processor seconds of composing alone and of the whole answer, and the most memory."""
    inputs = job_inputs(
        JobFields(
            model=model,
            cluster=None,
            gpus=gpus,
            seq_len=None,
            global_batch=int(batch),
            tokens_per_step=None,
            dtype=dtype,
            optimizer="adam",
            attention_kernel="flash",
            expert_load=1.0,
            tokens=None,
            price=None,
        )
    )
    started = time.process_time()
    source = NativeSource(inputs, _everything)
    source.composed(source.whole, COMPOSED)
    composed_s = time.process_time() - started
    started = time.process_time()
    plan(model, gpus=gpus, global_batch=int(batch), dtype=dtype)
    whole_s = time.process_time() - started
    return composed_s, whole_s, float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB)


if __name__ == "__main__":
    main()
