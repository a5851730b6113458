"""NeMo and Megatron-Bridge.

NeMo 2: `Training epoch 0, iteration 10/49 | ... | global_batch_size: 128 | ... | train_step_timing in s: 5.4 | ...`;
NeMo 1: a progress bar with `global_step=50.0, ..., train_step_timing in s=5.900`; Megatron-Bridge: `Step Time : 5.94s
GPU utilization: 445.2MODEL_TFLOP/s/GPU`, beside Megatron's own line about the iteration.
"""

from __future__ import annotations

import re

from meshwright.formats.logs import megatron
from meshwright.formats.logs.record import NUMBER, UNITS_S, LoggedStep, LogReader, LogReading, found, number_of
from meshwright.units import TERA

_TIMING = re.compile(rf"train_step_timing in (\w+)\s*[:=]\s*({NUMBER}|[^\s,|\]]+)")
_BRIDGE = re.compile(rf"Step Time\s*:\s*({NUMBER})\s*(s|ms)\b")


def _read(reading: LogReading, lines: list[str]) -> None:
    """Steps of any of the three; Megatron's lines are used where there are any."""
    if megatron.READER.recognises(lines):
        megatron.READER.read(reading, lines)
        return
    for at, line in enumerate(lines, start=1):
        if match := _TIMING.search(line):
            unit = UNITS_S.get(match[1])
            seconds = reading.positive(at, "train_step_timing", match[2]) if unit else None
            step = found(rf"global_step\s*[:=]\s*({NUMBER})", line) or found(r"iteration (\d{1,18})/", line)
            batch = found(rf"global_batch_size\s*[:=]\s*({NUMBER})", line)
            peak = found(rf"peak_memory_usage\s*[:=]\s*({NUMBER})", line)
            reading.step(
                LoggedStep(
                    line=at,
                    iteration=int(number_of(step)) if step else at,
                    step_time_s=seconds * unit if seconds and unit else None,
                    global_batch=int(number_of(batch)) if batch else None,
                    memory_bytes=number_of(peak) if peak else None,
                )
            )
        elif match := _BRIDGE.search(line):
            seconds = reading.positive(at, "Step Time", match[1])
            rate = found(rf"GPU utilization:\s*({NUMBER})\s*MODEL_TFLOP/s/GPU", line)
            reading.step(
                LoggedStep(
                    line=at,
                    iteration=len(reading.steps) + 1,
                    step_time_s=seconds * UNITS_S[match[2]] if seconds else None,
                    flop_per_s_per_device=number_of(rate) * TERA if rate else None,
                )
            )


READER = LogReader(
    name="nemo",
    aliases=("megatron-bridge",),
    signature=re.compile(r"train_step_timing in \w+\s*[:=]|^\s*Step Time\s*:\s*[\d.]+\s*s\b"),
    read=_read,
)
