"""Public timings of scan kernels: milliseconds forward, and forward with backward, by shape.

Sources, read 2026-11: PaddlePaddle/flash-attention#133 (H800), vllm-project/vllm#27299 (H100), pytorch/helion
examples/linear/BENCHMARKS.md (B200, columns of fla-org/flash-linear-attention).
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.specs.layers.recurrent import chunked_scan
from meshwright.specs.operators import Scan


@dataclass(frozen=True)
class Point:
    device: str
    kernel: str
    sequences: int
    tokens: int
    heads: int
    forward_ms: float
    both_ms: float | None = None


POINTS = (
    Point("h100", "delta", 1, 8192, 96, 2.033),
    Point("h100", "delta", 2, 16384, 16, 1.342),
    Point("h100", "kimi-delta", 1, 8192, 96, 3.268),
    Point("h100", "kimi-delta", 2, 16384, 16, 2.299),
    Point("h100", "mamba2", 1, 8192, 128, 8192 / 1.262327e4),
    Point("h100", "mamba2", 1, 16384, 128, 16384 / 1.292440e4),
    Point("h100", "mamba2", 1, 65536, 128, 65536 / 1.106830e4),
    Point("b200", "linear", 1, 8192, 96, 0.433, 2.781),
    Point("b200", "linear", 2, 16384, 16, 0.319, 2.196),
    Point("b200", "linear", 4, 4096, 64, 0.580, 3.833),
    Point("b200", "retention", 1, 8192, 96, 0.613, 3.300),
    Point("b200", "retention", 2, 16384, 16, 0.496, 2.605),
    Point("b200", "retention", 4, 4096, 64, 0.740, 4.288),
    Point("b200", "delta", 1, 8192, 96, 1.204, 5.388),
    Point("b200", "delta", 2, 16384, 16, 0.925, 4.072),
    Point("b200", "delta", 4, 4096, 64, 1.517, 6.945),
    Point("b200", "kimi-delta", 1, 8192, 96, 2.241, 11.204),
    Point("b200", "kimi-delta", 2, 16384, 16, 1.609, 7.777),
    Point("b200", "kimi-delta", 4, 4096, 64, 2.925, 14.615),
    Point("b200", "rwkv6", 1, 8192, 96, 4.372, 17.468),
    Point("b200", "rwkv6", 2, 16384, 16, 3.235, 12.903),
    Point("b200", "rwkv6", 4, 4096, 64, 5.741, 23.156),
)


def scan_of(point: Point) -> Scan:
    """The scan that a kernel computes; its own head width is 128, Mamba-2's is 64 of one group."""
    if point.kernel == "mamba2":
        return chunked_scan("scan", heads=point.heads, keys=(1 / point.heads, 128, 64), chunk=256)
    rule = "delta" if "delta" in point.kernel else "sum"
    decays = {"linear": 0, "retention": 1, "delta": 1, "kimi-delta": 128, "rwkv6": 128}[point.kernel]
    return chunked_scan("scan", heads=point.heads, keys=(1.0, 128, 128), chunk=64, rule=rule, decays=decays)
