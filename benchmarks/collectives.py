"""Bytes that compiled steps send against those that `ShardParallel` priced.

    python -m benchmarks.collectives [WORDS]

Programs of several kinds on eight virtual devices, as a row and as a grid. XLA's compiler for CPUs leaves a sum of
which each device keeps its part as an all-reduce; those for GPUs and TPUs make a reduce-scatter of it: `scattered`
counts it so, `sent` as it stands. Prices are bytes: links of 1 byte/s without latency, devices of 20 flop/s.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0")
os.environ.setdefault("NPROC", "64")

from tests.runtime.collective_programs import PROGRAMS, collective_bytes

SHAPES: tuple[tuple[int, ...], ...] = ((8,), (2, 4))


def main(words: list[str]) -> None:
    """Print one line for each program and mesh.

    Args:
        words: parts of names of programs; all without them.
    """
    print(f"{'program':23s} {'mesh':7s} {'ranks':5s} {'priced':>11s} {'sent':>11s} {'scattered':>11s} ratio")
    for name, program in PROGRAMS.items():
        if words and not any(word in name for word in words):
            continue
        for shape in SHAPES:
            found = collective_bytes(*program(), shape)
            mesh, ranks = "x".join(map(str, shape)), "".join(found.rank_axes) or "-"
            bytes_ = (found.priced_bytes, found.sent_bytes, found.scattered_bytes)
            ratio = found.scattered_bytes / found.priced_bytes
            print(
                f"{name:23s} {mesh:7s} {ranks:5s}", *(f"{size:11.0f}" for size in bytes_), f"{ratio:5.3f}", flush=True
            )


if __name__ == "__main__":
    main(sys.argv[1:])
