"""Hugging Face Trainer: the progress bar, `10/100 [00:50<07:30,  5.00s/it]`, and the summary at the end,
`{'train_runtime': 500.0, 'train_samples_per_second': 12.8, 'train_steps_per_second': 0.2, ...}`.

The bar's rate is of the last steps; the summary counts warm-up in and is used where there is no bar.
"""

from __future__ import annotations

import re

from meshwright.formats.logs.record import NUMBER, LoggedStep, LogReader, LogReading, found

_BAR = re.compile(rf"(?<!\d)(\d{{1,18}})/\d+ \[[\d:]+<[\d:?]+,\s*({NUMBER})\s*(s/it|it/s)")
_BATCH = r"[Tt]otal train batch size[^=]{0,80}=\s*(" + NUMBER + ")"


def _read(reading: LogReading, lines: list[str]) -> None:
    """Steps of the bar, else the mean of the summary."""
    summary: LoggedStep | None = None
    for at, line in enumerate(lines, start=1):
        # A bar is drawn again and again on one line of a captured terminal.
        for match in _BAR.finditer(line):
            rate = reading.positive(at, match[3], match[2])
            if rate and int(match[1]):
                seconds = rate if match[3] == "s/it" else 1.0 / rate
                reading.step(LoggedStep(line=at, iteration=int(match[1]), step_time_s=seconds))
        if text := found(rf"'train_steps_per_second':\s*'?({NUMBER})", line):
            rate = reading.positive(at, "train_steps_per_second", text)
            summary = LoggedStep(line=at, iteration=1, step_time_s=1.0 / rate if rate else None)
        if text := found(_BATCH, line):
            reading.state("global_batch", at, text)
    if not reading.steps and summary is not None:
        reading.step(summary)


READER = LogReader(
    name="transformers",
    aliases=("huggingface", "hf"),
    signature=re.compile(r"'train_(?:steps|samples)_per_second'|\d+/\d+ \[[\d:]+<[\d:?]+,\s*[\d.]+\s*(?:s/it|it/s)"),
    read=_read,
)
