"""torchtitan: `step: 10  loss: 6.1  memory: 49.66GiB(52.28%)  tps: 5,856  tflops: 339.16  mfu: 34.29%`.

`tps` is of one device: tokens of a data rank over the devices that share them.
"""

from __future__ import annotations

import re

from meshwright.formats.logs.record import NUMBER, LoggedStep, LogReader, LogReading, found, memory_in, number_of
from meshwright.units import TERA

_STEP = re.compile(r"step:\s*(\d{1,18})\s.{0,300}?\btps:\s*(\S+)")
_MEMORY = re.compile(rf"memory:\s*({NUMBER})\s*(GiB|GB|MiB|MB)")


def _read(reading: LogReading, lines: list[str]) -> None:
    """Steps with tokens per second and memory, the batch where it is printed."""
    for at, line in enumerate(lines, start=1):
        if match := _STEP.search(line):
            rate = found(rf"\btflops:\s*({NUMBER})", line)
            reading.step(
                LoggedStep(
                    line=at,
                    iteration=int(match[1]),
                    tokens_per_s_per_device=reading.positive(at, "tps", match[2]),
                    memory_bytes=memory_in(line, _MEMORY),
                    flop_per_s_per_device=number_of(rate) * TERA if rate else None,
                )
            )
        elif "global batch size" in line:
            # "Trainer is initialized with local batch size 8, global batch size 64, gradient accumulation steps 1,
            # sequence length 8192, total steps 1000 ..."
            for name, words in (("global_batch", "global batch size"), ("seq_len", "sequence length")):
                if text := found(rf"{words}\s*[:=]?\s*({NUMBER})", line):
                    reading.state(name, at, text.rstrip(","))


READER = LogReader(
    name="torchtitan",
    signature=re.compile(r"step:\s*\d+\s.{0,500}?\btps:\s*[\d,]"),
    read=_read,
)
