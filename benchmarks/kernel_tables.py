"""Timed kernels, read to columns: the tables of `aic/` beside the measured runs, and microbenchmarks.

Rows of a table are those of one kind of kernel, one architecture generation and one number format.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from meshwright.library.devices import device
from meshwright.specs.device import DeviceSpec

GENERATIONS = {
    "A100": ("A100-80",),
    "Hopper": ("H100", "H200"),
    "Blackwell": ("B200", "B300", "GB200", "GB300"),
    "L40S": ("L40S",),
    "RTX PRO 6000": ("RTX-PRO-6000",),
}
"""Devices whose kernels share a shape: one with settings of its own stands alone."""
NAMES = {
    "a100_sxm": "A100-80", "h100_sxm": "H100", "h200_sxm": "H200", "b200_sxm": "B200", "b300_sxm": "B300",
    "gb200": "GB200", "gb300": "GB300", "l40s": "L40S", "rtx_pro_6000_server": "RTX-PRO-6000",
}  # fmt: skip
FORMATS = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8-block", "nvfp4": "nvfp4"}
LEFT_OUT = 5
"""One shape in five is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of one kind, generation and format."""

    kind: str
    generation: str
    dtype: str
    columns: dict[str, np.ndarray]
    seconds: np.ndarray
    owner: np.ndarray
    """Of the generation's devices, by place."""

    @property
    def devices(self) -> tuple[DeviceSpec, ...]:
        """Of the generation."""
        return tuple(device(name) for name in GENERATIONS[self.generation])

    def each(self, field: str) -> np.ndarray:
        """A number of each row's device."""
        return np.array([float(getattr(one, field)) for one in self.devices])[self.owner]

    def peak(self) -> np.ndarray:
        """Dense FLOP/s of each row's device in the format."""
        return np.array([one.peak(self.dtype) or np.nan for one in self.devices])[self.owner]

    def left_out(self) -> np.ndarray:
        """Rows of every fifth shape, whatever the device."""
        mixed = np.zeros(len(self.seconds), dtype=np.int64)
        for place, values in enumerate(self.columns.values()):
            mixed = mixed * 31 + values.astype(np.int64) * (7919 + 2 * place)
        return mixed % 1009 % LEFT_OUT == 0

    def take(self, rows: np.ndarray) -> Table:
        """Some of the rows."""
        return Table(
            kind=self.kind,
            generation=self.generation,
            dtype=self.dtype,
            columns={name: values[rows] for name, values in self.columns.items()},
            seconds=self.seconds[rows],
            owner=self.owner[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file of timed kernels."""

    kind: str
    file: str
    dtype: str
    """Column of the format, or empty."""
    columns: tuple[str, ...]
    only: tuple[tuple[str, str], ...] = ()
    """Columns with the value that counts."""
    one_of: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Columns with the values that count."""
    time: str = "time_us"
    """Column of the microseconds."""


SOURCES = (
    Source(kind="GEMM", file="gemm", dtype="dtype", columns=("m", "n", "k")),
    Source(
        kind="attention",
        file="context_attention",
        dtype="attn_dtype",
        columns=("head_dim", "num_heads", "num_kv_heads", "batch_size", "seq_len"),
        only=(("attn_dtype", "bfloat16"),),
    ),
    Source(
        kind="attention without mask",
        file="full_attention",
        dtype="attn_dtype",
        columns=("head_dim", "num_heads", "batch_size", "seq_len"),
        only=(("attn_dtype", "bfloat16"),),
    ),
    Source(
        kind="latent attention",
        file="context_mla",
        dtype="mla_dtype",
        columns=("num_heads", "batch_size", "seq_len"),
        only=(("mla_dtype", "bfloat16"), ("kv_cache_dtype", "bfloat16")),
    ),
    Source(
        kind="grouped GEMM of experts",
        file="moe",
        dtype="dtype",
        columns=("hidden_size", "expert_ffn", "top_k", "experts", "ep", "tokens"),
        only=(("distribution", "balanced"),),
    ),
    # Eight nodes of the unnamed fabric take twice as long as four per byte; H200's nodes repeat H100's.
    *(
        Source(
            kind=f"token {way}",
            file="deepep",
            dtype="",
            time=f"{way}_us",
            columns=("nodes", "hidden_size", "top_k", "experts", "tokens_per_gpu"),
            only=(("mode", "normal"),),
            one_of=(("nodes", ("1", "2", "4")), ("sms", ("20", "24"))),
        )
        for way in ("dispatch", "combine")
    ),
    *(
        Source(
            kind=f"NCCL {name}",
            file="collectives",
            dtype="",
            columns=("num_gpus", "bytes"),
            only=(("op", op),),
        )
        for op, name in (
            ("all_gather", "all-gather"),
            ("reduce_scatter", "reduce-scatter"),
            ("all_reduce", "all-reduce"),
            ("alltoall", "all-to-all"),
        )
    ),
)


@dataclass
class Folder:
    """The folder `aic` of measured kernels."""

    path: Path

    @cached_property
    def _files(self) -> dict[str, list[dict[str, str]]]:
        return {}

    def rows(self, file: str) -> list[dict[str, str]]:
        """Of one file, read once."""
        if file not in self._files:
            with gzip.open(self.path / f"{file}.csv.gz", "rt", newline="") as stream:
                self._files[file] = list(csv.DictReader(stream))
        return self._files[file]

    def tables(self) -> Iterator[Table]:
        """Every kind, generation and format with rows."""
        for source in SOURCES:
            kept: dict[tuple[str, str], list[tuple[int, dict[str, str]]]] = {}
            for row in self.rows(source.file):
                if any(row[name] != value for name, value in source.only) or row["gpu"] not in NAMES:
                    continue
                if any(row[name] not in values for name, values in source.one_of):
                    continue
                dtype = FORMATS.get(row[source.dtype], "") if source.dtype else "bf16"
                if dtype:
                    name = NAMES[row["gpu"]]
                    generation = next(one for one, names in GENERATIONS.items() if name in names)
                    place = GENERATIONS[generation].index(name)
                    kept.setdefault((generation, dtype), []).append((place, row))
            for generation in GENERATIONS:
                for dtype in FORMATS.values():
                    if (generation, dtype) in kept and not _over_pcie(source, generation):
                        yield _table(source, generation, dtype, kept[generation, dtype])


def _over_pcie(source: Source, generation: str) -> bool:
    """Collectives of cards on an unknown host: nothing says which switches they crossed."""
    return source.file == "collectives" and generation in ("L40S", "RTX PRO 6000")


def _table(source: Source, generation: str, dtype: str, rows: Sequence[tuple[int, dict[str, str]]]) -> Table:
    return Table(
        kind=source.kind,
        generation=generation,
        dtype=dtype,
        columns={name: np.array([float(row[name]) for _, row in rows]) for name in source.columns},
        seconds=np.array([float(row[source.time]) for _, row in rows]) * 1e-6,
        owner=np.array([place for place, _ in rows]),
    )
