"""Training logs as measured steps: one file per framework, one record for all."""

from pathlib import Path

from meshwright.formats.logs import deepspeed, megatron, nemo, table, torchtitan, transformers
from meshwright.formats.logs.profiler import NAME, is_trace, read_trace
from meshwright.formats.logs.read import read_with
from meshwright.formats.logs.record import Logged, LoggedStep, LoggedTerm, LogReader, RunLog, median, steady

READERS: tuple[LogReader, ...] = (
    nemo.READER,
    megatron.READER,
    torchtitan.READER,
    deepspeed.READER,
    transformers.READER,
    table.READER,
)
"""The readers in order of precedence: NeMo and Megatron-DeepSpeed print Megatron's lines too."""

FRAMEWORKS = tuple(sorted(reader.name for reader in READERS))


def read_log(path: str | Path, framework: str | None = None) -> RunLog:
    """The steps of a training log, or of a profiler's trace; arguments and errors as `read_with`."""
    if framework == NAME or (framework is None and is_trace(path)):
        return read_trace(path)
    return read_with(READERS, path, framework)


__all__ = [
    "FRAMEWORKS",
    "READERS",
    "LogReader",
    "Logged",
    "LoggedStep",
    "LoggedTerm",
    "RunLog",
    "median",
    "read_log",
    "steady",
]
