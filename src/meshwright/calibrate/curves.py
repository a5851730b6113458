"""Curves of one device fitted to timed kernels: the numbers that make our own formulas draw them.

    minimise  sum over points  (ln predicted(point; numbers) - ln measured)^2

with predicted the kernels that price plans, so that what is measured here is what plans are priced with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.errors import InputError, Problem, UnsupportedError
from meshwright.kernels import compute
from meshwright.shapes import Float
from meshwright.specs.device import KernelEfficiency

ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
DIGITS = 4
MIN_POINTS = 4
"""Fewest points of a curve with two numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedProduct:
    """[m, k] times [k, n]."""

    dtype: str
    m: int
    n: int
    k: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedAttention:
    """Causal attention of whole sequences, one direction."""

    dtype: str
    batch: int
    heads: int
    head_dim: int
    seq_len: int
    backward: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStream:
    """An elementwise operation."""

    traffic_bytes: float
    """Read plus written."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedReduction:
    """An all-reduce over devices of this machine."""

    devices: int
    message_bytes: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Everything that was timed on a device."""

    products: tuple[TimedProduct, ...]
    attention: tuple[TimedAttention, ...]
    streams: tuple[TimedStream, ...]
    reductions: tuple[TimedReduction, ...]
    launch_s: float
    """A kernel with no work to speak of, back to back with its like."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One fit."""

    name: str
    numbers: tuple[tuple[str, float], ...]
    points: int
    median_error: float
    """Median of |predicted / measured - 1|."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCurves:
    """What the timings say of a device."""

    peak_flop_per_s: tuple[tuple[str, float], ...]
    """Peaks by dtype: the rate of endless products, where it is above the nominal peak or none is known."""
    memory_bytes_per_s: float
    """Bandwidth of the largest streams."""
    launch_s: float
    gemm_fraction: tuple[tuple[str, float], ...]
    """Shares of the peak by dtype."""
    k_half: float
    flash_forward_fraction: float
    flash_backward_fraction: float
    flash_keys_half: float
    link_bytes_per_s: float | None
    """Bandwidth between devices, per device and direction; None for one device."""
    link_latency_s: float | None
    curves: tuple[Curve, ...]


def fit_curves(timings: Timings, base: KernelEfficiency, units: int, nominal: dict[str, float]) -> DeviceCurves:
    """Numbers under which the kernels' formulas take as long as the device did.

    Args:
        timings: the timings of one device.
        base: tiles, and what was not measured.
        units: tiles the device works on at once.
        nominal: peaks in FLOP/s by dtype; empty where none is known.

    Returns:
        The numbers, and how well each curve fits.

    Raises:
        InputError: too few points for a curve.
        UnsupportedError: scipy is not installed.
    """
    dtypes = tuple(dict.fromkeys(point.dtype for point in timings.products))
    counts = {
        "products": min(sum(p.dtype == d for p in timings.products) for d in dtypes) if dtypes else 0,
        "streams": len(timings.streams),
        "attention": len(timings.attention),
    }
    if any(count < MIN_POINTS for count in counts.values()):
        raise InputError(
            what="too few points for a curve: " + ", ".join(f"{n} of {name}" for name, n in counts.items()),
            why=f"each curve has two numbers and needs at least {MIN_POINTS} points",
            fix="give the measurement more time: --seconds 60",
            field="seconds",
        )
    bandwidth, stream_curve = _streams(timings)
    roof = compute.Roof(peak_flop_per_s=1.0, max_fraction=1.0, memory_bytes_per_s=bandwidth, launch_s=timings.launch_s)
    rates, halves, curves = {}, {}, [stream_curve]
    for dtype in dtypes:
        points = [point for point in timings.products if point.dtype == dtype]
        rate, k_half, curve = _products(points, base, units, roof)
        rates[dtype], halves[dtype] = rate, k_half
        curves.append(curve)
    peaks = {dtype: max(nominal.get(dtype, 0.0), rate) for dtype, rate in rates.items()}
    main = "bf16" if "bf16" in peaks else dtypes[0]
    flash = []
    for backward in (False, True):
        timed = [point for point in timings.attention if point.backward == backward]
        fraction, keys_half, curve = _attention(
            timed, base, units, replace(roof, peak_flop_per_s=peaks[timed[0].dtype])
        )
        flash.append((fraction, keys_half))
        curves.append(curve)
    link = _link(timings.reductions)
    if link is not None:
        curves.append(link[2])
    return DeviceCurves(
        peak_flop_per_s=tuple((dtype, _rounded(peak)) for dtype, peak in peaks.items()),
        memory_bytes_per_s=_rounded(bandwidth),
        launch_s=_rounded(timings.launch_s),
        gemm_fraction=tuple((dtype, _rounded(rate / peaks[dtype])) for dtype, rate in rates.items()),
        k_half=_rounded(halves[main]),
        flash_forward_fraction=_rounded(flash[0][0]),
        flash_backward_fraction=_rounded(flash[1][0]),
        flash_keys_half=_rounded(flash[0][1]),
        link_bytes_per_s=_rounded(link[0]) if link else None,
        link_latency_s=_rounded(link[1]) if link else None,
        curves=tuple(curves),
    )


def _streams(timings: Timings) -> tuple[float, Curve]:
    """Bandwidth of streaming kernels; their start is known."""
    traffic = np.array([point.traffic_bytes for point in timings.streams])
    measured = np.array([point.seconds for point in timings.streams])

    def predicted(x: Float[np.ndarray, "1"]) -> Float[np.ndarray, "points"]:
        bandwidth = np.exp(x[0])
        return np.asarray(
            compute.vector_s(traffic, memory_bytes_per_s=bandwidth, max_fraction=1.0, launch_s=timings.launch_s)
        )

    found, error = _least(predicted, measured, [np.log(float(np.max(traffic / measured)))])
    return float(np.exp(found[0])), _curve("memory", {"gb_s": float(np.exp(found[0])) / 1e9}, measured, error)


def _products(
    points: Sequence[TimedProduct], base: KernelEfficiency, units: int, roof: compute.Roof
) -> tuple[float, float, Curve]:
    """Rate of endless products and the length at which half of it is reached."""
    m, n, k = (np.array([getattr(point, name) for point in points], dtype=float) for name in "mnk")
    measured = np.array([point.seconds for point in points])
    element = ELEMENT_BYTES[points[0].dtype]

    def predicted(x: Float[np.ndarray, "2"]) -> Float[np.ndarray, "points"]:
        return np.asarray(
            compute.gemm_s(
                m,
                n,
                k,
                roof=replace(roof, peak_flop_per_s=np.exp(x[0])),
                tiles=compute.Tiles(m=base.tile_m, n=base.tile_n, units=units, k_half=np.exp(x[1])),
                input_bytes=element,
                output_bytes=element,
            )
        )

    start = [np.log(float(np.max(2 * m * n * k / measured))), np.log(max(base.k_half, 1.0))]
    found, error = _least(predicted, measured, start, lower=[-np.inf, 0.0])
    rate, k_half = (float(value) for value in np.exp(found))
    numbers = {"tflops": rate / 1e12, "k_half": k_half}
    return rate, k_half, _curve(f"products in {points[0].dtype}", numbers, measured, error)


def _attention(
    points: Sequence[TimedAttention], base: KernelEfficiency, units: int, roof: compute.Roof
) -> tuple[float, float, Curve]:
    """Fraction of the peak for long sequences, and keys per query at which half of it is reached."""
    seq = np.array([point.seq_len for point in points], dtype=float)
    batch, heads, width = (
        np.array([getattr(point, name) for point in points], dtype=float) for name in ("batch", "heads", "head_dim")
    )
    beside = np.array([(base.flash_dim_cost(dim, dim) - 1) * dim for dim in width.tolist()])
    measured = np.array([point.seconds for point in points])
    dtype, backward = points[0].dtype, points[0].backward
    shape = compute.AttentionShape(
        pairs=compute.score_pairs(seq, seq),
        query_len=seq,
        key_len=seq,
        batch=batch,
        heads=heads,
        kv_heads=heads,
        qk_dim=width,
        v_dim=width,
    )

    def predicted(x: Float[np.ndarray, "2"]) -> Float[np.ndarray, "points"]:
        return np.asarray(
            compute.flash_attention_s(
                shape,
                backward=backward,
                roof=replace(roof, max_fraction=np.exp(x[0])),
                blocks=compute.AttentionBlocks(
                    queries=base.flash_tile,
                    units=units,
                    dim_half=beside,
                    keys_half=np.exp(x[1]),
                    tail=base.flash_tail,
                ),
                element_bytes=ELEMENT_BYTES[dtype],
            )
        )

    start = [np.log(0.3), np.log(max(base.flash_keys_half, 1.0))]
    found, error = _least(predicted, measured, start, lower=[-np.inf, 0.0], upper=[0.0, np.inf])
    fraction, keys_half = (float(value) for value in np.exp(found))
    name = "attention backward" if backward else "attention forward"
    return fraction, keys_half, _curve(name, {"fraction": fraction, "keys_half": keys_half}, measured, error)


def _link(points: Sequence[TimedReduction]) -> tuple[float, float, Curve] | None:
    """Bandwidth and hop latency of a ring: t = 2 (n - 1) (latency + S / (n B))."""
    if len(points) < MIN_POINTS:
        return None
    size = np.array([point.message_bytes for point in points])
    measured = np.array([point.seconds for point in points])
    count = points[0].devices
    hops = 2 * (count - 1)

    def predicted(x: Float[np.ndarray, "2"]) -> Float[np.ndarray, "points"]:
        return np.asarray(hops * (np.exp(x[1]) + size / (count * np.exp(x[0]))))

    start = [np.log(float(np.max(hops * size / (count * measured)))), np.log(float(measured.min()) / hops)]
    found, error = _least(predicted, measured, start)
    bandwidth, latency = (float(value) for value in np.exp(found))
    numbers = {"gb_s": bandwidth / 1e9, "latency_us": latency * 1e6}
    return bandwidth, latency, _curve(f"all-reduce over {count} devices", numbers, measured, error)


def _least(
    predicted: Callable[[np.ndarray], np.ndarray],
    measured: Float[np.ndarray, "points"],
    start: Sequence[float],
    lower: Sequence[float] | None = None,
    upper: Sequence[float] | None = None,
) -> tuple[np.ndarray, float]:
    """Robust least squares of log ratios, and the median of |predicted / measured - 1|."""
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise UnsupportedError(
            Problem(
                what="scipy is not installed",
                why="curves are fitted with it",
                fix="pip install 'meshwright[calibrate]'",
            ),
            code="MW405",
        ) from None
    bounds = (-np.inf if lower is None else lower, np.inf if upper is None else upper)
    result = least_squares(lambda x: np.log(predicted(x) / measured), start, bounds=bounds, loss="soft_l1", f_scale=0.1)
    return result.x, float(np.median(np.abs(predicted(result.x) / measured - 1)))


def _curve(name: str, numbers: dict[str, float], measured: np.ndarray, error: float) -> Curve:
    return Curve(name=name, numbers=tuple(numbers.items()), points=len(measured), median_error=error)


def _rounded(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")
