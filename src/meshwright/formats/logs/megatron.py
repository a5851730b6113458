"""Megatron-LM, Megatron-Core and Megatron-DeepSpeed.

` iteration 10/ 100 | consumed samples: 1280 | elapsed time per iteration (ms): 5123.4 | ... | global batch size: 128`,
arguments before it as `  num_layers ...... 80`, memory as `[Rank 0] (after 2 iterations) memory (MB) | ... | max
allocated: 61234.5 | ...`. With `--timing-log-level 1` or 2 a block of timers follows, `    forward-backward ......:
(5035.21, 5036.12)`, the least and the most of all ranks in ms of one iteration.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from meshwright.formats.logs.record import (
    NUMBER,
    UNITS_S,
    LoggedStep,
    LoggedTerm,
    LogReader,
    LogReading,
    found,
    memory_bytes,
    number_of,
)
from meshwright.units import MILLI, TERA

_STEP = re.compile(rf"iteration\s+(\d{{1,18}})\s*/.{{0,300}}?elapsed time per iteration \((\w+)\):\s*({NUMBER}|\S+)")
_ARGUMENT = re.compile(r"^\s*(?:\[[^\]]*\]:?\s*)?(\w+)\s\.{3,}\s(\S+)\s*$")
_MEMORY = re.compile(
    rf"after (\d{{1,18}}) iterations\) memory \(([KMG]i?B|bytes)\).{{0,300}}?max allocated:\s*({NUMBER})"
)
_TFLOPS = rf"throughput per GPU \(TFLOP/s/GPU\):\s*({NUMBER})"
_POWER = rf"power per GPU \(W/GPU\):\s*({NUMBER})"
_TIMER = re.compile(rf"^\s+([a-z][a-z/-]+) \.{{2,}}: (?:\(({NUMBER}), ({NUMBER})\)|({NUMBER}))\s*$")
_TASKS = ("compute", "recompute", "tp", "cp", "ep", "host", "offload")
"""Parts of a predicted step that are spent in the tasks of a pipeline."""
_SYNCS = (
    "all-grads-sync",
    "non-tensor-parallel-grads-all-reduce",
    "embedding-grads-all-reduce",
    "conditional-embedder-grads-all-reduce",
)
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
    peak, iteration = None, 0
    timers: dict[int, dict[str, tuple[float, float]]] = {}
    for at, line in enumerate(lines, start=1):
        if match := _STEP.search(line):
            unit = UNITS_S.get(match[2])
            seconds = reading.positive(at, "elapsed time per iteration", match[3]) if unit else None
            batch = found(rf"global batch size:\s*({NUMBER})", line)
            rate, power = found(_TFLOPS, line), found(_POWER, line)
            iteration = int(match[1])
            reading.step(
                LoggedStep(
                    line=at,
                    iteration=iteration,
                    step_time_s=seconds * unit if seconds and unit else None,
                    global_batch=int(number_of(batch)) if batch else None,
                    memory_bytes=peak,
                    flop_per_s_per_device=number_of(rate) * TERA if rate else None,
                    power_w=number_of(power) if power else None,
                )
            )
        elif iteration and (match := _TIMER.match(line)):
            least, most = match[2] or match[4], match[3] or match[4]
            timers.setdefault(iteration, {})[match[1]] = (number_of(least) * MILLI, number_of(most) * MILLI)
        elif match := _ARGUMENT.match(line):
            if match[1] in _STATED:
                reading.state(_STATED[match[1]], at, match[2])
        elif match := _MEMORY.search(line):
            peak = max(peak or 0.0, memory_bytes(match[3], match[2]))
    reading.terms |= {at: list(_terms(found)) for at, found in timers.items()}


def _terms(timers: dict[str, tuple[float, float]]) -> Iterator[LoggedTerm]:
    """Timers without those they contain: `forward-backward` holds sums of gradients, `optimizer` a gather.

    Of computing the slowest rank counts; of a collective the last rank to come, as the others wait for it there.
    """

    def least(*names: str) -> float:
        return sum(timers[name][0] for name in names if name in timers)

    def most(*names: str) -> float:
        return sum(timers[name][1] for name in names if name in timers)

    summed_s, whole_s = least(*_SYNCS), most("forward-backward")
    passes_s = most("forward-compute", "backward-compute")
    if whole_s and passes_s:
        yield LoggedTerm(name="forward-compute, backward-compute", parts=_TASKS, seconds=passes_s)
        left_s = max(whole_s - passes_s - summed_s, 0.0)
        yield LoggedTerm(name="rest of forward-backward", parts=("pp", "bubble"), seconds=left_s)
    elif whole_s:
        left_s = max(whole_s - summed_s, 0.0)
        yield LoggedTerm(name="forward-backward", parts=(*_TASKS, "pp", "bubble"), seconds=left_s)
    gather_s = least("params-all-gather")
    if summed_s or gather_s:
        yield LoggedTerm(name="all-grads-sync, params-all-gather", parts=("dp",), seconds=summed_s + gather_s)
    if "optimizer" in timers:
        left_s = max(most("optimizer") - gather_s, 0.0)
        yield LoggedTerm(name="optimizer", parts=("optimizer",), seconds=left_s)


READER = LogReader(
    name="megatron",
    aliases=("megatron-lm", "megatron-core"),
    signature=re.compile(r"elapsed time per iteration \("),
    read=_read,
)
