"""A prediction beside its run, in words: how far apart they are, what explains it, what to try."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from meshwright.calibrate.causes import Cause
from meshwright.estimate.result import StepEstimate
from meshwright.report.words.reasons import PARTS
from meshwright.specs.job import Job
from meshwright.units import percent, seconds, signed_seconds, significant

MOST_CAUSES = 4
"""Most causes that advice is given for."""
LATE = 0.01
"""Share of the step by which a part must be late to be looked at."""
CLOSE = 0.02
"""Relative difference that is called none."""
NAMES = {
    "gemm_fraction": "speed of large 16-bit products",
    "gemm_fraction_fp8": "speed of large fp8 products",
    "gemm_fraction_fp4": "speed of large fp4 products",
    "memory_fraction": "memory bandwidth that kernels reach",
    "flash_forward_fraction": "speed of fused attention, forward",
    "flash_backward_fraction": "speed of fused attention, backward",
    "flash_fa1_share": "speed of first-generation attention kernels",
    "flash_fa2_share": "speed of second-generation attention kernels",
    "launch_s": "launch of one kernel",
    "power_exponent": "how clocks follow the power limit",
    "operator_s": "host time to issue one operator",
    "vector_passes": "memory traffic of elementwise kernels, in passes of fused ones",
    "product_share": "rate of products in the framework over the device's best",
    "wave_loss": "loss of a wave of tiles that is not full",
    "cast_passes": "passes to scale and cast 8-bit inputs",
    "link_share": "bandwidth that collectives reach, of a benchmark's",
    "overlap": "share of communication hidden behind compute",
    "tensor_s": "host time to update a parameter tensor",
    "step_s": "time outside both passes: data, clipping, logging",
    "pace": "pace of the machine as a whole",
}
"""Names by the last part of a number's name."""
_CLOCKS = {
    "NVIDIA": "nvidia-smi --query-gpu=clocks.sm,power.draw,clocks_event_reasons.active -l 1",
    "AMD": "amd-smi monitor --power-usage --gfx",
}
_KERNELS = ("gemm_fraction", "gemm_fraction_fp8", "gemm_fraction_fp4", "product_share", "pace", "power_exponent")
_ATTENTION = ("flash_forward_fraction", "flash_backward_fraction", "flash_fa1_share", "flash_fa2_share")
_HOST = ("launch_s", "operator_s")
_FUSION = ("vector_passes", "memory_fraction", "cast_passes", "wave_loss")
MIXED = "several kinds of device: one run cannot tell which kind causes the difference"
NO_MEMORY = "the log does not report memory"
NO_TERMS = (
    "the log reports no parts of the step: Megatron does with --timing-log-level 2, DeepSpeed with "
    "wall_clock_breakdown, and a trace of the PyTorch profiler does for any framework"
)


def log_sentence(estimate: StepEstimate, measured_s: float, steps: tuple[int, int]) -> str:
    """How far prediction and measurement are apart, and whether that was to be expected.

    Args:
        estimate: the estimate of the plan.
        measured_s: median of the steady steps.
        steps: used, and read from the log.
    """
    ratio = measured_s / estimate.step_time_s - 1
    low, high = estimate.step_time_low_s, estimate.step_time_high_s
    span = f"{seconds(low)} to {seconds(high)}"
    if abs(ratio) < CLOSE:
        apart = f"as predicted, {seconds(estimate.step_time_s)}"
    else:
        way = "slower" if ratio > 0 else "faster"
        apart = f"{percent(abs(ratio))} {way} than the predicted {seconds(estimate.step_time_s)}"
    where = "inside" if low <= measured_s <= high else "outside"
    of = f"median of {steps[0]} of {steps[1]} steps"
    return f"measured {seconds(measured_s)} per step ({of}), {apart}; {where} the predicted range, {span}"


def cause_line(cause: Cause, gap_s: float) -> str:
    """`speed of large 16-bit products: +1.2 s of +2.1 s; alone it would be 0.61 instead of 0.74 (0.68-0.8): outside`.

    Args:
        cause: one number.
        gap_s: measured minus predicted.
    """
    name = cause_name(cause)
    said = seconds if cause.name.endswith("_s") else significant
    span = f"90% range {said(cause.low)}-{said(cause.high)}"
    lead = f"{name}: {signed_seconds(cause.effect_s)} of {signed_seconds(gap_s)}; predicted with {said(cause.value)}"
    if cause.needed is None:
        return f"{lead} ({span}); no value of it alone explains the difference"
    where = "within" if cause.within else "outside"
    return f"{lead} ({span}); alone it would have to be {said(cause.needed)}, {where} its range"


def left_line(left_s: float, gap_s: float) -> str:
    """What part of a difference the numbers do not explain."""
    return f"{signed_seconds(left_s)} of {signed_seconds(gap_s)} is specific to this plan, or not modelled"


def mostly(parts: Sequence[str], change_s: float) -> str:
    """Which of the parts that a run reports is furthest off."""
    names = ", ".join(PARTS[part] for part in parts) or "time that is not predicted"
    return f"furthest off: {names}, {signed_seconds(change_s)}"


def cause_name(cause: Cause) -> str:
    """What a number is called, with its owner."""
    owner, _, field = cause.name.partition(".")[2].rpartition(".")
    return f"{NAMES.get(field, field)} ({owner.replace('.', ', ')})"


def advice(job: Job, gap: float, late: Mapping[str, float], found: Sequence[Cause], log: str) -> Iterator[str]:
    """What to look at, by parts that take longer and numbers that explain most; then how predictions take the run in.

    Args:
        job: the job that ran.
        gap: measured over predicted step, less 1.
        late: measured minus predicted of the parts that the run reports, over the step.
        found: the causes.
        log: name of the file.
    """
    if gap > CLOSE:
        parts = [_OF_PART[name] for name in sorted(late, key=lambda name: -late[name]) if late[name] > LATE]
        fields = [*parts, *(cause.name.rpartition(".")[2] for cause in found[:MOST_CAUSES])]
        yield from dict.fromkeys(_advice(job, field) for field in fields if field in _ADVISED)
    yield (
        f"`meshwright calibrate --from-log {log} --plan PLAN -o run.json` moves the numbers by this run and plans "
        "again with them"
    )


def _advice(job: Job, field: str) -> str:
    if field in _KERNELS:
        vendor = job.cluster.groups[0].device.vendor
        clocks = _CLOCKS.get(vendor)
        watch = f"watch clocks and power during steps: `{clocks}`; " if clocks else "watch clocks and power; "
        return f"{watch}`meshwright profile` times products on one idle device"
    if field in _ATTENTION:
        return "see which attention kernel runs (NVTE_DEBUG=1, or the kernel names of a trace), and update its library"
    if field in _HOST:
        return (
            "the device may wait for the host: capture CUDA graphs, compile, pin processes to cores, or give a "
            "micro-batch more sequences (`plan --pin mbs=2`); gaps between kernels in a trace show it"
        )
    if field in _FUSION:
        return "see that norms, rotary embeddings, gated functions and the loss run fused: a trace lists their kernels"
    if field == "link_share":
        domains = ", ".join(domain.name for domain in job.cluster.groups[0].domains)
        return (
            f"run nccl-tests on the same nodes and compare with {domains}; NCCL_DEBUG=INFO names the transports, and a "
            "link that fell back to TCP or one rail stands out"
        )
    if field == "bubble":
        return (
            "stages wait for each other: a slow device, layers that are split unevenly, or sends that do not overlap; "
            "compare the times of the ranks, and plan with more micro-batches or chunks (`--pin vpp=2`)"
        )
    if field == "overlap":
        return (
            "see that communication overlaps: --overlap-grad-reduce, --overlap-param-gather and --tp-comm-overlap of "
            "Megatron, CUDA_DEVICE_MAX_CONNECTIONS=1 before Blackwell, prefetching of FSDP"
        )
    return "look outside the two passes: data loading, logging every step, garbage collection, checkpoints"


_ADVISED = {*_KERNELS, *_ATTENTION, *_HOST, *_FUSION, "link_share", "overlap", "step_s", "bubble"}
_OF_PART = {
    "compute": "pace",
    "recompute": "pace",
    "bubble": "bubble",
    "pp": "bubble",
    "tp": "overlap",
    "cp": "overlap",
    "ep": "link_share",
    "dp": "overlap",
    "optimizer": "step_s",
    "offload": "link_share",
    "host": "operator_s",
}
"""What to look at where a part of the step takes longer than predicted."""


def other_software(name: str, planned: str, framework: str) -> str:
    """Sentence that a prediction is for the framework of the log, not for that of the plan."""
    return f"predicted for {name}, as the log is of {framework}; the plan was priced for {planned}"


def uneven_steps(low_s: float, high_s: float) -> str:
    """Steps that differ, and what makes them."""
    return (
        f"steps take {seconds(low_s)} to {seconds(high_s)} (10% and 90%): data loading, stragglers or other jobs on "
        "the fabric, none of which is predicted"
    )


def slowing(early_s: float, late_s: float) -> str:
    """Steps that get slower."""
    return (
        f"steps slow down from {seconds(early_s)} to {seconds(late_s)} over the log: clocks that drop as devices heat, "
        "a fragmented allocator, or growing imbalance of experts"
    )


def other_flop(counted: float, own: float) -> str:
    """Sentence that a log counts other FLOP than the model has."""
    return (
        f"the log's TFLOP/s count {significant(counted / 1e15)} PFLOP a step, the model's are "
        f"{significant(own / 1e15)}: some frameworks count full attention or recompute, or this is another model; "
        "compare seconds"
    )
