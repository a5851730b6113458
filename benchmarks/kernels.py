"""Kernels: `python -m benchmarks.kernels [--measured DIR] [--json FILE]`.

The formulas that price plans against kernels timed one by one. How a rate follows the shape comes from the package and
is what is scored. What a burst on a cool device has and a training step has not, is fitted to the other four fifths of
the shapes, a few numbers for a table of hundreds or thousands of rows: the level of each device, the launch, the
streaming rate of its caches, the cast of inputs that engines count in, and how far clocks fall within a long kernel.

By device: these numbers come from the other devices of the generation, and nothing of the device is used.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import markdown_table
from benchmarks.kernel_exchanges import exchange_cells
from benchmarks.kernel_tables import Folder, Table
from meshwright.estimate.hardware import level_rates
from meshwright.estimate.layers.mixing import FLASH_PAD
from meshwright.kernels import collectives, compute
from meshwright.kernels.exchange import INSIDE_LATENCY_S, Routing, token_exchange_s
from meshwright.library.clusters import resolve_gpus

FIT_ROWS = 800
HEAT_S = 3e-4
"""From kernels of this length on clocks fall with the logarithm of the length."""
WAVE_LOSS = 0.1
GOALS = {
    "GEMM": 0.06,
    "attention": 0.08,
    "attention without mask": 0.08,
    "latent attention": 0.08,
    "grouped GEMM of experts": 0.10,
    "NCCL": 0.10,
    "token exchange": 0.12,
}
COLLECTIVES: dict[str, Callable[..., Any]] = {
    "all-gather": collectives.all_gather_s,
    "reduce-scatter": collectives.reduce_scatter_s,
    "all-reduce": collectives.all_reduce_s,
    "all-to-all": collectives.all_to_all_s,
}
FP8_TOKEN = 1 + 4 / 128
"""Bytes of an element with the scale of its block."""
BYTES = {"bf16": 2.0, "fp8": 1.0, "fp8-block": 1.0, "nvfp4": 0.5625}


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One number of bursts."""

    name: str
    start: float
    low: float
    high: float


LAUNCH = Number(name="launch_us", start=4.0, low=0.1, high=60.0)
MEMORY = Number(name="memory", start=0.8, low=0.3, high=1.0)
HEAT = Number(name="heat", start=0.02, low=1e-4, high=0.3)
CAST = Number(name="cast", start=0.7, low=0.1, high=1.5)
ROUTED = Number(name="passes over all tokens", start=2.0, low=0.01, high=30.0)
MOVED = Number(name="passes over routed rows", start=1.5, low=0.05, high=30.0)

Numbers = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How a kind of table is predicted."""

    numbers: tuple[Number, ...]
    seconds: Callable[[Table, Numbers], np.ndarray]


def gemm(table: Table, burst: Numbers) -> np.ndarray:
    """Products, with the cast of their left input where engines time it along."""
    m, n, k = (table.columns[name] for name in "mnk")
    size, memory = BYTES[table.dtype], table.each("memory_bandwidth_bytes_per_s")
    body = _product(table, burst, m, n, k, 1.0)
    cast = m * k * (2 + size) / (memory * burst["cast"]) if "cast" in burst else 0.0
    return burst["launch_us"] * 1e-6 + _heated(body, burst) + cast


def attention(table: Table, burst: Numbers) -> np.ndarray:
    """Fused attention forward: grouped, without a mask, or latent."""
    columns, spec = table.columns, table.devices[0].efficiency
    seq, heads = columns["seq_len"], columns["num_heads"]
    latent = table.kind == "latent attention"
    dims = np.full_like(seq, 192) if latent else np.ceil(columns["head_dim"] / FLASH_PAD) * FLASH_PAD
    values = np.full_like(seq, 128) if latent else dims
    cost = {dim: spec.flash_dim_cost(dim, 128 if latent else dim) for dim in set(dims.tolist())}
    beside = np.array([cost[dim] - 1 for dim in dims.tolist()])
    shape = compute.AttentionShape(
        pairs=compute.score_pairs(seq, seq, causal=table.kind != "attention without mask"),
        query_len=seq,
        key_len=seq,
        batch=columns["batch_size"],
        heads=heads,
        kv_heads=columns.get("num_kv_heads", heads),
        qk_dim=dims,
        v_dim=values,
    )
    blocks = compute.AttentionBlocks(
        queries=spec.flash_tile,
        units=table.each("units"),
        dim_half=beside * (dims + values) / 2,
        keys_half=spec.flash_keys_half,
        tail=spec.flash_tail,
    )
    body = compute.flash_attention_s(shape, backward=False, roof=_roof(table, burst), blocks=blocks, element_bytes=2.0)
    return burst["launch_us"] * 1e-6 + _heated(np.asarray(body), burst)


def experts(table: Table, burst: Numbers) -> np.ndarray:
    """Gate and up, then down, all experts of a rank in one launch each, and the rows moved around them."""
    columns, memory = table.columns, table.each("memory_bandwidth_bytes_per_s")
    groups = np.maximum(columns["experts"] / columns["ep"], 1.0)
    rows = columns["tokens"] * columns["top_k"] / columns["ep"]
    hidden, width = columns["hidden_size"], columns["expert_ffn"]
    body = _product(table, burst, rows / groups, 2 * width, hidden, groups)
    body = body + _product(table, burst, rows / groups, hidden, width, groups)
    routed = burst["passes over all tokens"] * columns["tokens"] * hidden * 2 / memory
    moved = burst["passes over routed rows"] * rows * (2 * hidden + 3 * width) * 2 / memory
    return burst["launch_us"] * 1e-6 + body + routed + moved


def collective(table: Table, burst: Numbers) -> np.ndarray:
    """A collective inside a node, at one level of the link for all sizes and ranks."""
    found, level = np.zeros_like(table.seconds), np.broadcast_to(burst["level"], table.seconds.shape)
    form = COLLECTIVES[table.kind.removeprefix("NCCL ")]
    for place, spec in enumerate(table.devices):
        rows = table.owner == place
        if rows.any():
            domain = resolve_gpus(f"8x{spec.name}").groups[0].domains[0]
            rates = (level_rates(domain, float(level[rows][0])),)
            inside = (table.columns["num_gpus"][rows],)
            found[rows] = form(table.columns["bytes"][rows], inside=inside, rates=rates)
    return found


def tokens(table: Table, burst: Numbers) -> np.ndarray:
    """Tokens to their experts in fp8, or back in bf16, by kernels that send a token once."""
    columns, found = table.columns, np.zeros_like(table.seconds)
    level = np.broadcast_to(burst["level"], table.seconds.shape)
    sent = columns["tokens_per_gpu"] * columns["top_k"] * columns["hidden_size"]
    sent = sent * (FP8_TOKEN if table.kind == "token dispatch" else 2.0)
    alike = np.stack([table.owner, columns["nodes"], columns["top_k"]])
    for place, nodes, copies in np.unique(alike, axis=1).T.tolist():
        rows = (alike == np.array([[place], [nodes], [copies]])).all(axis=0)
        spec = table.devices[int(place)]
        inside = spec.node.devices_per_node if spec.node else 8
        domains = resolve_gpus(f"{2 * inside}x{spec.name}").groups[0].domains
        found[rows] = token_exchange_s(
            sent[rows],
            inside=(float(inside), float(inside * nodes)),
            rates=tuple(level_rates(domain, float(level[rows][0])) for domain in (domains[0], domains[-1])),
            routing=Routing(copies=copies),
        )
    return burst["launch_us"] * 1e-6 + found - INSIDE_LATENCY_S


def kind_of(table: Table) -> Kind:
    """How a table is predicted."""
    if table.kind.startswith("NCCL"):
        return Kind(numbers=(), seconds=collective)
    if table.kind.startswith("token "):
        return Kind(numbers=(LAUNCH,), seconds=tokens)
    if table.kind == "grouped GEMM of experts":
        return Kind(numbers=(LAUNCH, MEMORY, ROUTED, MOVED), seconds=experts)
    if table.kind == "GEMM":
        return Kind(numbers=(LAUNCH, MEMORY, HEAT) + ((CAST,) if table.dtype != "bf16" else ()), seconds=gemm)
    return Kind(numbers=(LAUNCH, MEMORY, HEAT), seconds=attention)


def _roof(table: Table, burst: Numbers) -> compute.Roof:
    return compute.Roof(
        peak_flop_per_s=table.peak(),
        max_fraction=burst["level"],
        memory_bytes_per_s=table.each("memory_bandwidth_bytes_per_s") * burst["memory"],
        launch_s=0.0,
    )


def _product(
    table: Table, burst: Numbers, m: np.ndarray, n: np.ndarray, k: np.ndarray, groups: np.ndarray | float
) -> np.ndarray:
    efficiency = table.devices[0].efficiency
    curve = efficiency.product_curve(table.dtype)
    tiles = compute.Tiles(
        m=efficiency.tile_m,
        n=efficiency.tile_n,
        units=table.each("units"),
        k_half=curve.k_half,
        wave_loss=WAVE_LOSS,
        joint=curve.joint,
    )
    size = BYTES[table.dtype]
    return np.asarray(
        compute.gemm_s(
            m, n, k, groups=groups, roof=_roof(table, burst), tiles=tiles, input_bytes=size, output_bytes=2.0
        )
    )


def _heated(seconds: np.ndarray, burst: Numbers) -> np.ndarray:
    return seconds * (1 + burst["heat"] * np.log1p(seconds / HEAT_S))


def fit(table: Table) -> tuple[Numbers, np.ndarray]:
    """Numbers of bursts, and the logarithm of the level of each device of the generation."""
    from scipy.optimize import least_squares

    kind = kind_of(table)
    few = table.take(np.arange(0, len(table.seconds), max(1, len(table.seconds) // FIT_ROWS)))
    present = sorted(set(few.owner.tolist()))
    column = np.searchsorted(present, few.owner)
    start = np.array([*(np.log(number.start) for number in kind.numbers), *([np.log(0.75)] * len(present))])
    low = np.array([*(np.log(number.low) for number in kind.numbers), *([-4.0] * len(present))])
    high = np.array([*(np.log(number.high) for number in kind.numbers), *([0.7] * len(present))])

    def numbers(x: np.ndarray) -> Numbers:
        return {number.name: float(np.exp(value)) for number, value in zip(kind.numbers, x, strict=False)}

    def residual(x: np.ndarray) -> np.ndarray:
        burst = numbers(x) | {"level": np.exp(x[len(kind.numbers) :])[column]}
        return np.asarray(np.log(kind.seconds(few, burst) / few.seconds))

    found = least_squares(residual, start, bounds=(low, high), loss="soft_l1", f_scale=0.05, max_nfev=40).x
    levels = np.full(len(table.devices), np.nan)
    levels[present] = found[len(kind.numbers) :]
    return numbers(found), levels


def predict(table: Table, burst: Numbers, levels: np.ndarray) -> np.ndarray:
    """Relative errors, with the mean level where a device has none."""
    filled = np.where(np.isnan(levels), np.nanmean(levels), levels)
    seconds = kind_of(table).seconds(table, burst | {"level": np.exp(filled)[table.owner]})
    return np.asarray(seconds / table.seconds - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Of one table."""

    table: Table
    burst: Numbers
    levels: np.ndarray
    by_shape: np.ndarray
    """Errors of shapes that were left out."""
    by_device: np.ndarray
    """Errors of every row under the numbers of the other devices; none for one device."""


def score(table: Table) -> Score:
    """Leave shapes out, then devices."""
    out = table.left_out()
    burst, levels = fit(table.take(~out))
    by_device = []
    for place in sorted(set(table.owner.tolist())) if len(set(table.owner.tolist())) > 1 else ():
        own = table.owner == place
        by_device.append(predict(table.take(own), *fit(table.take(~own))))
    return Score(
        table=table,
        burst=burst,
        levels=levels,
        by_shape=predict(table.take(out), burst, levels),
        by_device=np.concatenate(by_device) if by_device else np.zeros(0),
    )


def scores(folder: Path) -> Iterator[Score]:
    """Of every table of `folder`/aic."""
    for table in Folder(folder / "aic").tables():
        yield score(table)


SECTION = """## Kernels

The formulas that price plans against kernels timed one by one on an idle device, forward, in {rows:,} rows of public
tables (ai-dynamo/aiconfigurator, 2026-08-21; the quickest of all engines and versions counts). The shape of a rate
comes from the package: two numbers per generation and format of products, five of attention, six of a link. A burst is
not a training step, so its level per device, launch, cache rate, cast and fall of clocks are fitted to four fifths of
the shapes, and the fifth is scored; a level here is over the data-sheet peak, for attention at head dim 128, for NCCL
over the rate that plans start from. *Device left out*: nothing of the device is used, the other devices of its
generation give the level. Training runs give the levels of plans.

{tables}

Dispatch and combine of DeepEP as plans price them, with nothing fitted; long ones send 512 tokens or more. The line
above has their level and launch fitted like the others', by 20 or 24 multiprocessors, on one to four nodes:

{exchanges}

DeepEP's kernels move about 300 GB/s a device whatever the link gives, so NVLink 5 is taken as quicker than they are;
the fabric of rows on 8 nodes is not stated, and they are twice as slow as those on 4. Rows of experts over more than 16
ranks are the worst of theirs: they have one to six experts a rank, one engine timed them, and its routing of all tokens
takes most of the time. Blackwell Ultra reaches less of its 4-bit peak than Blackwell, so neither tells the level of the
other. Rows of the A100's experts come from one engine with kernels not tuned for it.
"""


def kernels_section(folder: Path) -> str:
    """The section of the accuracy page; empty where there are no tables, or scipy is missing to fit the levels."""
    if not (folder / "aic").is_dir() or find_spec("scipy") is None:
        return ""
    found = list(scores(folder))
    heads = ["exchange", "shapes", "median", "median, long", "bias, long"]
    exchanges = markdown_table(heads, exchange_cells(Folder(folder / "aic")))
    rows = sum(len(one.table.seconds) for one in found)
    return SECTION.format(rows=rows, tables=kernels_text(found), exchanges=exchanges)


def kernels_text(found: list[Score]) -> str:
    """Scores of each kind, then of each table."""
    cells, lines = [], []
    kinds = dict.fromkeys(_group(one.table.kind) for one in found)
    for kind in kinds:
        own = [one for one in found if _group(one.table.kind) == kind]
        shape = np.concatenate([one.by_shape for one in own])
        apart = np.concatenate([one.by_device for one in own])
        rows = sum(len(one.table.seconds) for one in own)
        cells.append(
            [kind, f"{rows:,}", _median(shape), _tail(shape), _median(apart), _tail(apart), f"{GOALS[kind]:.0%}"]
        )
    for one in found:
        flash = 1.0
        if "attention" in one.table.kind:
            flash = one.table.devices[0].efficiency.flash_dim_cost(128, 128)
        levels = ", ".join(
            f"{spec.name} {np.exp(level) / flash:.2f}"
            for spec, level in zip(one.table.devices, one.levels, strict=True)
            if not np.isnan(level)
        )
        name = f"{one.table.kind}, {one.table.generation}"
        lines.append(
            [name, one.table.dtype, _median(one.by_shape), _tail(one.by_shape), _median(one.by_device), levels]
        )
    heads = ["kernel", "rows", "median", "p90", "median, device left out", "p90, device left out", "meant"]
    return "\n\n".join(
        (
            markdown_table(heads, cells),
            markdown_table(["table", "format", "median", "p90", "median, device left out", "level of a burst"], lines),
        )
    )


def _group(kind: str) -> str:
    """The line of a table: collectives share one, and exchanges of tokens."""
    groups = {"NCCL": "NCCL", "token": "token exchange"}
    return groups.get(kind.split()[0], kind)


def _median(errors: np.ndarray) -> str:
    return f"{np.median(np.abs(errors)):.1%}" if len(errors) else "-"


def _tail(errors: np.ndarray) -> str:
    return f"{np.quantile(np.abs(errors), 0.9):.0%}" if len(errors) else "-"


def main(arguments: list[str] | None = None) -> int:
    """Score, print, and keep the numbers where asked."""
    from benchmarks.accuracy import find_folder

    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description="Score the kernels' formulas.")
    parser.add_argument("--measured", metavar="DIR", help="folder with aic/")
    parser.add_argument("--json", metavar="FILE", help="the numbers of bursts and the scores, as JSON")
    options = parser.parse_args(arguments)
    folder = find_folder(options.measured)
    if folder is None or not (folder / "aic").is_dir():
        print("no timed kernels found: give --measured DIR, a folder with aic/", file=sys.stderr)
        return 2
    print(kernels_section(folder))
    if options.json:
        found = list(scores(folder))
        Path(options.json).write_text(json.dumps([_record(one) for one in found], indent=1) + "\n")
    return 0


def _record(one: Score) -> dict[str, Any]:
    return {
        "kind": one.table.kind,
        "generation": one.table.generation,
        "dtype": one.table.dtype,
        "burst": one.burst,
        "levels": dict(zip((spec.name for spec in one.table.devices), np.exp(one.levels).tolist(), strict=True)),
        "median": float(np.median(np.abs(one.by_shape))),
    }


if __name__ == "__main__":
    sys.exit(main())
