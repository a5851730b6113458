"""Speed and quality of the compiler's planning: `python -m benchmarks.compiler`; processor time, from shapes alone.

The cluster is that of Zheng et al. (OSDI 2022): eight hosts of eight V100 with 16 GB, 25 Gbit/s between hosts. Their
plans are priced the same way as ours: the same sharding solver inside stages, the same event simulator.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from benchmarks import markdown_table
from benchmarks.timing import Line

SEQ_LEN, VOCAB, BATCH = 1024, 51200, 1024


@dataclass(frozen=True, slots=True)
class Case:
    """One model on one cluster, and the plan that was published for it."""

    name: str
    layers: int
    hidden: int
    heads: int
    devices: int
    target_s: float
    published: tuple[tuple[int, tuple[int, ...] | int], ...] = ()
    """Transformer layers of each stage, and its devices or logical mesh."""
    micro_batches: int = 0


CASES = (
    Case("GPT-2.6B", 32, 2560, 32, 8, 10.0, ((8, 2), (8, 2), (16, 4)), 128),
    Case("GPT-6.7B", 32, 4096, 32, 16, 10.0, ((16, (2, 4)), (16, (2, 4))), 64),
    Case("GPT-15B", 48, 5120, 40, 32, 10.0, ((12, (2, 4)),) * 4, 128),
    Case("GPT-39B", 48, 8192, 64, 64, 30.0),
)
"""Sizes of Zheng et al. (OSDI 2022); plans of their public code. With profiling, their largest took 2,393 s to plan."""


def v100_hosts(devices: int) -> Any:
    """Hosts of eight V100; half of the peak of products, 87% of NVLink, all of the network.

    Args:
        devices: whole hosts.
    """
    from meshwright.compiler.stages.hosts import Hosts

    return Hosts(
        hosts=devices // 8,
        devices_per_host=8,
        flop_per_s=0.5 * 125e12,
        memory_bytes=15e9,
        inside_bytes_per_s=130e9,
        between_bytes_per_s=25e9 / 8,
    )


def gpt_step(case: Case) -> tuple[Any, Any]:
    """A training step of a GPT in plain JAX and the shapes of its arguments.

    Args:
        case: its sizes.
    """
    import jax
    import jax.numpy as jnp

    from meshwright.specs.layers.attention import Attention
    from meshwright.specs.layers.dense_mlp import DenseMlp
    from meshwright.specs.model import LayerRun, LayerSpec, ModelSpec
    from meshwright.zoo.decoder import Decoder
    from meshwright.zoo.training import Adam, train_step

    width = case.hidden // case.heads
    layer = LayerSpec(
        attention=Attention(heads=case.heads, kv_heads=case.heads, head_dim=width, qkv_bias=True, out_bias=True),
        mlp=DenseMlp(ffn_hidden=4 * case.hidden, gated=False, bias=True),
        norm="layernorm",
    )
    spec = ModelSpec(
        name=case.name,
        family="gpt2",
        hidden=case.hidden,
        vocab=VOCAB,
        max_seq_len=SEQ_LEN,
        source="Zheng et al. 2022",
        runs=(LayerRun(layers=(layer,), repeats=case.layers),),
        tied_embeddings=True,
        learned_positions=SEQ_LEN,
        final_norm="layernorm",
    )
    model, optimizer = Decoder(spec=spec, seq_len=SEQ_LEN, compute="bfloat16"), Adam()
    weights = jax.eval_shape(model.init, jax.random.key(0))
    state = {
        "weights": weights,
        "moments": jax.eval_shape(optimizer.init, weights),
        "step": jax.ShapeDtypeStruct((), jnp.int32),
    }
    batch = {
        "tokens": jax.ShapeDtypeStruct((BATCH, SEQ_LEN + 1), jnp.int32),
        "sample": jax.ShapeDtypeStruct((BATCH,), jnp.int32),
    }
    return train_step(model, optimizer), (state, batch)


def planning_line(case: Case) -> Line:
    """Seconds of planning, and how the plan compares with the published one.

    Args:
        case: what is planned.
    """
    from meshwright.compiler.stages.search import StageSpace, plan_step, price_stages

    step, shapes = gpt_step(case)
    hosts = v100_hosts(case.devices)
    start = time.process_time()
    plan = plan_step(step, shapes, hosts)
    spent_s = time.process_time() - start
    stages = ", ".join("x".join(map(str, stage.mesh_shape)) for stage in plan.stages)
    note = f"{plan.step_s:.4g} s a step: stages on {stages}; {plan.micro_batches} micro-batches"
    if case.published:
        # The embedding goes with the first stage, the head with the last.
        counts = [count for count, _ in case.published]
        counts[0] += 1
        counts[-1] += len(plan.layer_ends) - sum(counts)
        given = [(count, shape) for count, (_, shape) in zip(counts, case.published, strict=True)]
        theirs = price_stages(step, shapes, hosts, given, space=StageSpace(micro_batches=(case.micro_batches,)))
        note += f"; the published plan takes {theirs.step_s:.4g} s, {theirs.step_s / plan.step_s:.3f} times as long"
    return Line(f"plan {case.name} on {case.devices} V100", spent_s, case.target_s, "s", note=note)


def solver_line() -> Line:
    """The whole sharding problem of a GPT of 21 layers, no layers tied, on a grid of 2 x 4 devices."""
    from meshwright.compiler.sharding.graph import graph_of
    from meshwright.compiler.sharding.solve import solve_choices
    from meshwright.compiler.tracing.trace import LossReader

    step, shapes = gpt_step(Case("GPT of 21 layers", 21, 2560, 32, 8, 3.0))
    loss, differentiated = LossReader(step, shapes).read(32)
    start = time.process_time()
    graph = graph_of(
        loss, [loss.invars[place] for place in differentiated], v100_hosts(8).mesh((2, 4)), parameter_copies=4.0
    )
    found = solve_choices(graph.problem())
    spent_s = time.process_time() - start
    note = f"{len(graph.edges)} edges, exact by {found.method}; costs computed and solved"
    return Line(f"sharding problem of {len(graph.nodes)} decisions", spent_s, 3.0, "s", note=note)


def layerwise_line() -> Line:
    """A strategy for every layer of a Llama-2-7B, on the case that Galvatron's engine takes 188 s for."""
    import meshwright

    start = time.process_time()
    found = meshwright.plan("llama-2-7b", gpus="8xA100-40", seq_len=2048, global_batch=64, parallelizer="layerwise")
    spent_s = time.process_time() - start
    note = f"{found.best.estimate.step_time_s:.4g} s a step, all comparisons; Galvatron's own engine takes 188 s"
    return Line("Llama-2-7B layer by layer on 8 A100-40", spent_s, 2.0, "s", note=note)


def compiler_lines() -> list[Line]:
    """Every measurement, once."""
    return [*(planning_line(case) for case in CASES), solver_line(), layerwise_line()]


if __name__ == "__main__":
    shown = [line.cells() for line in compiler_lines()]
    print(markdown_table(("what", "measured", "target", "measured / target", "note"), shown))
