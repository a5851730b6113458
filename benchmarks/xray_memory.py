"""Peak memory that X-ray sees of a rank, beside what the run itself allocated: `python -m benchmarks.xray_memory`.

Rows are the functional tests of Megatron-LM in measured/memory.csv, whose configuration its repository states whole:
dense models in bf16, read on the last rank. Tests of options that X-ray does not run, or whose row does not state them,
are left out by name.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

from meshwright.errors import MeshwrightError
from meshwright.units import GIB
from meshwright.xray.start import traced

Row = Mapping[str, str]

UNSTATED = (
    "reruns",
    "instances",
    "cross_entropy",
    "account_for",
    "layout",
    "fsdp",
    "fp8",
    "offload",
    "dist_optimizer_no_mmap",
)
"""Parts of names of tests whose options are not in their row."""


def rows(folder: Path) -> Iterator[Row]:
    """One row of each configuration and kind of device."""
    seen = set()
    for row in csv.DictReader((folder / "memory.csv").read_text(encoding="utf-8").splitlines()):
        notes = row["notes"].partition(";")[0]
        whole = row["usable"] == "True" and "golden" in row["source"] and row["mem_kind"] == "allocated"
        plain = (row["arch"], row["dtype"], row["cp"] or "1") == ("dense", "bf16", "1")
        if not whole or not plain or any(part in notes for part in UNSTATED):
            continue
        same = tuple(row[name] for name in ("n_layers", "hidden", "gpu", *_DEGREES, "attention", "recompute"))
        if same not in seen:
            seen.add(same)
            yield row


_DEGREES = ("tp", "pp", "vpp", "dp", "zero_stage", "micro_batch", "seq_len")
_SWITCHES = {
    "untie-embeddings": ("--untie-embeddings-and-output-weights",),
    "overlap-param-gather=True": ("--overlap-grad-reduce", "--overlap-param-gather"),
}


def options_of(row: Row) -> dict[str, str]:
    """The test's options, as its row states them."""
    found = {
        "--bf16": "",
        "--num-layers": row["n_layers"],
        "--hidden-size": row["hidden"],
        "--ffn-hidden-size": row["ffn_hidden"] or str(4 * int(row["hidden"])),
        "--num-attention-heads": row["n_heads"],
        "--seq-length": row["seq_len"],
        "--max-position-embeddings": row["seq_len"],
        "--micro-batch-size": row["micro_batch"],
        "--global-batch-size": row["global_batch_seqs"],
        "--tensor-model-parallel-size": row["tp"],
        "--pipeline-model-parallel-size": row["pp"],
    }
    for part, flags in _SWITCHES.items():
        found |= dict.fromkeys(flags, "") if part in row["notes"] else {}
    if row["n_kv_heads"] not in ("", row["n_heads"]):
        found |= {"--group-query-attention": "", "--num-query-groups": row["n_kv_heads"]}
    if row["vpp"] not in ("", "1"):
        found["--num-virtual-stages-per-pipeline-rank"] = row["vpp"]
    for name, flag in (("gated_mlp", "--swiglu"), ("sp", "--sequence-parallel")):
        found |= {flag: ""} if row[name] == "True" else {}
    if row["zero_stage"].startswith("1"):
        found["--use-distributed-optimizer"] = ""
    if "rope" in row["notes"]:
        found["--position-embedding-type"] = "rope"
    if "unfused" in row["attention"]:
        found["--attention-backend"] = "unfused"
    if row["recompute"].startswith("full"):
        found |= {"--recompute-granularity": "full", "--recompute-method": "uniform", "--recompute-num-layers": "1"}
    elif row["recompute"].startswith("sel"):
        found["--recompute-granularity"] = "selective"
    return found


def main() -> None:
    """Run the rows and print them with their median error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measured", default=os.environ.get("MESHWRIGHT_MEASURED", ""))
    parser.add_argument("--python", default=None, help="an interpreter that has megatron-core")
    parser.add_argument("--rows", type=int, default=1000)
    asked = parser.parse_args()
    errors = []
    for row in list(rows(Path(asked.measured)))[: asked.rows]:
        world = int(row["tp"]) * int(row["pp"]) * int(row["dp"])
        question = {"framework": "megatron", "rank": world - 1, "world": world, "micro_batches": None}
        name = row["notes"].partition(";")[0]
        try:
            seen = traced({**question, "options": options_of(row), "vocab": int(row["vocab"])}, asked.python).peak
        except MeshwrightError as error:
            print(f"| {name} | {row['gpu']} | not run: {error.problems[0].why[:80]} | | |", flush=True)
            continue
        peak, measured = seen.live_bytes / GIB, float(row["target_peak_mem_gib"])
        errors.append(peak / measured - 1)
        print(f"| {name} | {row['gpu']} | {peak:.3f} | {measured:.3f} | {errors[-1]:+.1%} |", flush=True)
    if errors:
        print(f"{len(errors)} rows, median error {median(map(abs, errors)):.1%}, bias {median(errors):+.1%}")


if __name__ == "__main__":
    main()
