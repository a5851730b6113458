"""A word on runs that are far off: what their source leaves open, or what the model leaves out."""

from __future__ import annotations

SMALL = 4096 * 2048
"""Elements of a device's share of a micro-batch below which a layer's kernels are done before the next is issued."""
FINE_EXPERT = 3072
"""Width of an expert below which its products are small."""


def why_off(record: dict[str, str], error: float, metric: str) -> str:
    """A word on a run that is far off: what its source leaves open, or what the model leaves out."""
    known = _why_memory_off(record) if metric == "memory" else _why_time_off(record, error)
    if "suspect" in record.get("notes", "").lower():
        known.append("marked as suspect")
    return "; ".join(known) or "not known"


def _why_memory_off(record: dict[str, str]) -> list[str]:
    reasons = []
    if not record.get("recompute"):
        reasons.append("recompute not stated and assumed")
    if not record.get("dtype") or "not stated" in record["dtype"]:
        reasons.append("format not stated and assumed")
    if record.get("mem_kind") == "device":
        reasons.append("whole device, other processes included")
    if "functional-test" in record.get("source", ""):
        reasons.append("a tiny model: caches and workspaces that are not modelled weigh as much as the model")
    return reasons


def _why_time_off(record: dict[str, str], error: float) -> list[str]:
    reasons = []
    width, batch, split = (number(record, name) for name in ("hidden", "micro_batch", "tp"))
    small = batch * number(record, "seq_len") * width / split < SMALL
    if not record.get("dtype") or "not stated" in record["dtype"]:
        reasons.append("format not stated and assumed")
    if "functional-test" in record.get("source", ""):
        reasons.append("a test of the framework, not a tuned run")
    if record.get("arch") == "moe" and error < 0 and number(record, "moe_ffn_hidden") <= FINE_EXPERT:
        reasons.append("many small kernels of experts and routing, bound by the host")
    elif small and error < 0:
        reasons.append("small layers, bound by the host")
    if record.get("arch") == "moe" and error > 0:
        reasons.append("copies of a token for one node travel once in newer dispatchers, here once per expert")
    if not record.get("recompute") and error > 0:
        reasons.append("recompute not stated and assumed")
    if not record.get("micro_batch"):
        reasons.append("micro-batch not stated and assumed")
    if "triton" in record.get("attention", "") and float(record.get("seq_len") or 0) >= 8192:
        reasons.append("an attention kernel of 2023 at long sequences, priced as today's")
    if record.get("head_dim") and number(record, "head_dim") % 8:
        reasons.append("a head dimension that tensor cores do not like")
    return reasons


def number(record: dict[str, str], name: str) -> float:
    """A column as a number, 1 where it is blank."""
    return float(record.get(name) or 1)
