"""The 44 published values that Calculon was validated on: by its model here, and by `estimate`."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from functools import cache

from benchmarks import ROOT
from benchmarks.claims.claim import Claim, memory_gib, states_gib, step_s

VALUES = ROOT / "tests" / "calculon" / "data" / "validation.csv"
MODES = {"none": ".nosp", "seq": "", "sel": ".nosp.rc-sel", "seqsel": ".rc-sel", "full": ".nosp.rc-full"}
"""Tokens of a plan, by the name of the mode."""
ACTIVATIONS = memory_gib(["activations"])


READERS: dict[str, Callable[..., float]] = {
    "weights+grads+optimizer": states_gib,
    "activations": ACTIVATIONS,
    "activation memory relative to none": lambda none, found: 100 * ACTIVATIONS(found) / ACTIVATIONS(none),
    "time per global batch": step_s,
}
"""Our number, by the name of the metric."""


@cache
def values() -> tuple[dict[str, str], ...]:
    """The rows of the file."""
    with VALUES.open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def command(row: dict[str, str], mode: str) -> str:
    """The estimate of a row's run."""
    chunks = f".vpp{row['interleave']}" if row["interleave"] != "1" else ""
    plan = f"tp{row['tp']}{MODES[mode]}.pp{row['pp']}{chunks}.dp{row['dp']}.mbs{row['microbatch']}"
    return (
        f"estimate {row['model'].lower()} --gpus {row['num_procs']}xA100-80 --seq 2048 --gbs {row['batch']} "
        f"--attention-kernel materialised --software megatron-lm --plan {plan}"
    )


def claims() -> Iterator[Claim]:
    """All of them, in the order of the file."""
    for row in values():
        mode, metric = row["mode"], row["metric"]
        modes = ("none", mode) if metric.startswith("activation memory relative") else (mode,)
        yield Claim(
            system="Calculon",
            says=f"{row['model']}, {mode}: {metric}",
            published=float(row["published"]),
            unit=row["unit"],
            setting=f"{row['num_procs']} A100, tp {row['tp']}, pp {row['pp']}, interleaving {row['interleave']}, batch "
            f"{row['batch']}; Calculon: {float(row['calculon']):.4g}",
            source=f"arXiv 2205.05198, {row['test'].replace('fig', 'figure ').replace('tab', 'table ')}",
            known="C",
            commands=tuple(command(row, one) for one in modes),
            ours=READERS[metric],
            why=reason(row),
        )


def reason(row: dict[str, str]) -> str:
    """Why a row may be off."""
    if row["mode"] == "full":
        return "ours holds the layer that is computed again beside the inputs that are kept"
    return ""
