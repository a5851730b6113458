"""DeepSpeed: `epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=7.8, CurrSamplesPerSec=8.0,
MemAllocated=59.6GB, MaxMemAllocated=63.3GB`, before it `train_batch_size ............ 64`.

The current rate is taken; the running average counts warm-up in. With `wall_clock_breakdown` there are timers of each
step before it: `time (ms) | fwd: 80.00 | bwd: 160.00 | bwd_inner: 120.00 | bwd_allreduce: 39.00 | step: 100.00`.
"""

from __future__ import annotations

import re

from meshwright.formats.logs.record import (
    NUMBER,
    LoggedStep,
    LoggedTerm,
    LogReader,
    LogReading,
    found,
    memory_in,
    number_of,
)
from meshwright.units import MILLI

_STEP = re.compile(
    r"(?:global_step=|\]\s+\d+/)(\d{1,18}),.{0,500}?(?:CurrSamplesPerSec|(?<!Avg)SamplesPerSec)=([^\s,]+)"
)
_MEMORY = re.compile(rf"MaxMemAllocated=({NUMBER})\s*(GB|MB)")
_TIMERS = re.compile(r"time \(ms\) \| fwd: ")
_TIMER = re.compile(rf"\| (\w+): ({NUMBER})")
_TERMS = {
    "fwd": ("compute", "recompute", "tp", "cp", "ep", "host", "offload", "pp", "bubble"),
    "bwd_allreduce": ("dp",),
    "step": ("optimizer",),
}


def _read(reading: LogReading, lines: list[str]) -> None:
    """Steps with sequences per second and memory, and the batch."""
    iteration = 0
    for at, line in enumerate(lines, start=1):
        if _TIMERS.search(line):
            iteration += 1
            reading.terms[iteration] = _terms({name: number_of(ms) * MILLI for name, ms in _TIMER.findall(line)})
        elif match := _STEP.search(line):
            reading.step(
                LoggedStep(
                    line=at,
                    iteration=int(match[1]),
                    samples_per_s=reading.positive(at, "CurrSamplesPerSec", match[2]),
                    memory_bytes=memory_in(line, _MEMORY),
                )
            )
        elif text := found(rf"\btrain_batch_size\s*[.:=]+\s*({NUMBER})", line):
            reading.state("global_batch", at, text)


def _terms(timers: dict[str, float]) -> list[LoggedTerm]:
    """Both passes together, without the sum of gradients that `bwd` holds."""
    passes_s = timers.get("fwd", 0.0) + timers.get("bwd_inner", timers.get("bwd", 0.0))
    named = {"fwd": passes_s} | {name: timers[name] for name in ("bwd_allreduce", "step") if name in timers}
    names = {"fwd": "fwd, bwd_inner" if "bwd_inner" in timers else "fwd, bwd"}
    return [
        LoggedTerm(name=names.get(name, name), parts=_TERMS[name], seconds=seconds) for name, seconds in named.items()
    ]


READER = LogReader(
    name="deepspeed",
    signature=re.compile(r"SamplesPerSec="),
    read=_read,
)
