"""DeepSpeed: `epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=7.8, CurrSamplesPerSec=8.0,
MemAllocated=59.6GB, MaxMemAllocated=63.3GB`, before it `train_batch_size ............ 64`.

The current rate is taken; the running average counts warm-up in.
"""

from __future__ import annotations

import re

from meshwright.formats.logs.record import NUMBER, LoggedStep, LogReader, LogReading, found, memory_in

_STEP = re.compile(r"(?:global_step=|\]\s+\d+/)(\d+),.*?(?:CurrSamplesPerSec|(?<!Avg)SamplesPerSec)=([^\s,]+)")
_MEMORY = re.compile(rf"MaxMemAllocated=({NUMBER})\s*(GB|MB)")


def _read(reading: LogReading, lines: list[str]) -> None:
    """Steps with sequences per second and memory, and the batch."""
    for at, line in enumerate(lines, start=1):
        if match := _STEP.search(line):
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


READER = LogReader(
    name="deepspeed",
    signature=re.compile(r"SamplesPerSec="),
    read=_read,
)
