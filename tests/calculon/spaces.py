"""Small applications, systems and spaces that brute force can walk."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.calculon.axes import PRESETS, Axes
from meshwright.calculon.executions import KEYS
from meshwright.calculon.inputs import Application, System
from meshwright.calculon.model import price_for_search
from meshwright.calculon.reading import read_system
from meshwright.calculon.space import ExecutionSpace

SMALL = Application(
    name="small", hidden=3072, feedforward=12288, seq_size=1024, attn_heads=24, attn_size=128, num_blocks=12
)
"""Twelve blocks of a model of 1.4 B parameters."""
WIDE = Application(
    name="wide", hidden=8192, feedforward=32768, seq_size=2048, attn_heads=64, attn_size=128, num_blocks=10
)
"""Ten blocks, so that pipelines of 4 and 8 are uneven."""


def a100(tier1_gib: float = 80.0, tier2_gib: float = 512.0) -> System:
    """The system of the library with other memory capacities."""
    system = read_system("a100_80g")
    return replace(
        system,
        mem1=replace(system.mem1, capacity_bytes=tier1_gib * 2**30),
        mem2=replace(system.mem2, capacity_bytes=tier2_gib * 2**30),
    )


def one_network(system: System, usage: float = 0.3) -> System:
    """All traffic on one slow network that takes part of the processor."""
    network = replace(
        system.networks[1],
        bandwidth_bytes_per_s=50e9,
        processor_usage=usage,
        operations={
            "p2p": (1.0, 0.0),
            "reduce_scatter": (1.0, -1.0),
            "all_gather": (1.0, -1.0),
            "all_reduce": (2.0, -1.0),
        },
    )
    return replace(system, networks=(network,))


def roofline(system: System) -> System:
    """Flop time and memory time beside each other."""
    return replace(system, processing_mode="roofline")


def space_of(app: Application, system: System, procs: int, batch: int, name: str, **options: Any) -> ExecutionSpace:
    """A named space, with pins given as `pins`."""
    pins: dict[str, tuple[Any, ...]] = options.pop("pins", {})
    axes: Axes = PRESETS[name](system, **options)
    for key, values in pins.items():
        axes = axes.pin(key, values)
    return ExecutionSpace(app, system, procs, batch, axes)


def brute(space: ExecutionSpace) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Feasible numbers, seconds per sample and memory of both tiers, of every execution priced by itself."""
    columns = space.take(np.arange(space.size))
    priced = price_for_search(space.app, space.system, columns)
    kept = np.flatnonzero(priced.ok)
    sample_s = priced.total_time_s[kept] / columns.batch_size[kept]
    return kept, sample_s, priced.tier1_bytes[kept], priced.tier2_bytes[kept]


def divisors(number: int) -> list[int]:
    return [candidate for candidate in range(1, number + 1) if number % candidate == 0]


def loops(app: Application, system: System, procs: int, batch: int, *, full: bool = False) -> Iterator[tuple[Any, ...]]:
    """The space written as nested loops, as a reader of Calculon's documentation would: rows in the order of KEYS."""
    offload = (True, False) if system.mem2.capacity_bytes > 0 else (False,)
    names = [name for name in ("float8", "float16", "bfloat16", "float32") if name in system.matrix]
    tiers = range(len(system.networks))
    for t, p in itertools.product(divisors(procs), divisors(procs)):
        if procs % (t * p) or app.hidden % t or app.attn_heads % t or p > app.num_blocks:
            continue
        if (full and app.feedforward % t) or (not full and app.num_blocks % p):
            continue
        d = procs // (t * p)
        held = [k * d for k in range(1, batch // d + 1)] if full else [batch // d * d] if batch >= d else []
        for gbs in held:
            for mbs, v in itertools.product(divisors(gbs // d), divisors(-(-app.num_blocks // p)) if p > 1 else [1]):
                for recompute, comm in itertools.product(("full", "attn_only", "none"), ("ar", "p2p_rs_ag", "rs_ag")):
                    for choice in itertools.product(
                        (True, False) if d > 1 else (False,),
                        (True, False) if comm == "rs_ag" and recompute != "full" else (False,),
                        (True, False) if d > 1 else (False,),
                        ("none", "ring", "pipe") if t > 1 else ("none",),
                        offload,
                        offload if full or recompute != "full" else (False,),
                        offload,
                        (True, False) if full else (True,),
                        names if full else ("float16",),
                        tiers if t > 1 else (0,),
                        tiers if p > 1 else (0,),
                        tiers if d > 1 else (0,),
                    ):
                        shard, redo, dp_overlap, tp_overlap, w, a, o, fused, dtype, tn, pn, dn = choice
                        values = {
                            "num_procs": procs,
                            "tensor_par": t,
                            "pipeline_par": p,
                            "data_par": d,
                            "tensor_par_net": tn,
                            "pipeline_par_net": pn,
                            "data_par_net": dn,
                            "batch_size": gbs,
                            "microbatch_size": mbs,
                            "datatype": dtype,
                            "fused_activation": fused,
                            "attention_type": "multihead",
                            "activation_recompute": recompute,
                            "pipeline_interleaving": v,
                            "optimizer_sharding": shard,
                            "tensor_par_comm_type": comm,
                            "tensor_par_overlap": tp_overlap,
                            "seq_par_ag_redo": redo,
                            "data_par_overlap": dp_overlap,
                            "weight_offload": w,
                            "activations_offload": a,
                            "optimizer_offload": o,
                            "training": True,
                        }
                        yield tuple(values[key] for key in KEYS)
