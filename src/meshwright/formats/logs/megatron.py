"""Megatron-LM, Megatron-Core and Megatron-DeepSpeed.

` iteration 10/ 100 | consumed samples: 1280 | elapsed time per iteration (ms): 5123.4 | ... | global batch size: 128`,
arguments before it as `  num_layers ...... 80`, memory as `[Rank 0] (after 2 iterations) memory (MB) | ... | max
allocated: 61234.5 | ...`.
"""

from __future__ import annotations

import re

from meshwright.formats.logs.record import (
    NUMBER,
    UNITS_S,
    LoggedStep,
    LogReader,
    LogReading,
    found,
    memory_bytes,
    number_of,
)

_STEP = re.compile(rf"iteration\s+(\d+)\s*/.*?elapsed time per iteration \((\w+)\):\s*({NUMBER}|\S+)")
_ARGUMENT = re.compile(r"^\s*(?:\[[^\]]*\]:?\s*)?(\w+)\s\.{3,}\s(\S+)\s*$")
_MEMORY = re.compile(rf"after (\d+) iterations\) memory \((\w+)\).*?max allocated:\s*({NUMBER})")
_STATED = {
    "num_layers": "num_layers",
    "hidden_size": "hidden",
    "ffn_hidden_size": "ffn_hidden",
    "num_attention_heads": "heads",
    "seq_length": "seq_len",
    "global_batch_size": "global_batch",
    "micro_batch_size": "mbs",
    "world_size": "devices",
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "data_parallel_size": "dp",
}


def _read(reading: LogReading, lines: list[str]) -> None:
    """Steps, arguments and memory."""
    peak = None
    for at, line in enumerate(lines, start=1):
        if match := _STEP.search(line):
            unit = UNITS_S.get(match[2])
            seconds = reading.positive(at, "elapsed time per iteration", match[3]) if unit else None
            batch = found(rf"global batch size:\s*({NUMBER})", line)
            reading.step(
                LoggedStep(
                    line=at,
                    iteration=int(match[1]),
                    step_time_s=seconds * unit if seconds and unit else None,
                    global_batch=int(number_of(batch)) if batch else None,
                    memory_bytes=peak,
                )
            )
        elif match := _ARGUMENT.match(line):
            if match[1] in _STATED:
                reading.state(_STATED[match[1]], at, match[2])
        elif match := _MEMORY.search(line):
            peak = max(peak or 0.0, memory_bytes(match[3], match[2]))


READER = LogReader(
    name="megatron",
    aliases=("megatron-lm", "megatron-core"),
    signature=re.compile(r"elapsed time per iteration \("),
    read=_read,
)
