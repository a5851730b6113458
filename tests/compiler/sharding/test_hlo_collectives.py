"""What the compiler makes of a decision: collectives in the compiled program, against what was priced."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend import core
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwright.compiler.cuts.cut import body_of, cut
from meshwright.compiler.marking import value_and_grad
from meshwright.compiler.sharding.apply import SolvedSharding, shard_stage
from meshwright.compiler.sharding.cost import LogicalMesh, MeshAxis
from meshwright.compiler.sharding.hlo_collectives import Collectives, count_collectives
from meshwright.compiler.tracing.trace import trace_step


def loss(weights: Any, batch: Any) -> jax.Array:
    x = batch
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return jnp.mean(x**2)


def train(weights: Any, batch: Any) -> Any:
    value, gradients = value_and_grad(loss)(weights, batch)
    return optax.apply_updates(weights, jax.tree.map(lambda g: -0.1 * g, gradients)), value


def compiled(samples: int, shapes: list[tuple[int, int]]) -> tuple[Collectives, SolvedSharding]:
    """Loss and gradients as one program on eight devices in a row."""
    weights = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    step = trace_step(train, (weights, jax.ShapeDtypeStruct((samples, shapes[0][0]), jnp.float32)))
    body = body_of(step.loss, step.wrt)
    (stage,) = cut(body, step.wrt, [len(body.spine)])
    view = LogicalMesh(axes=(MeshAxis(size=8, latency_s=1e-8, bytes_per_s=1e9),), flop_per_s=1e8)
    stage, sharding = shard_stage(step, stage, [(view, Mesh(np.array(jax.devices()), ("x",)))])
    program = core.jaxpr_as_fun(stage.program)
    count = len(shapes)
    lie = [
        NamedSharding(sharding.mesh, sharding.specs.get(step.loss.invars[place], PartitionSpec()))
        for place in [*stage.parameters, *stage.others]
    ]

    def run(*operands: Any) -> Any:
        return jax.value_and_grad(lambda *own: program(*own, *operands[count:])[0], tuple(range(count)))(
            *operands[:count]
        )

    avals = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in stage.program.jaxpr.invars]
    whole = NamedSharding(sharding.mesh, PartitionSpec())
    jitted = jax.jit(run, in_shardings=lie, out_shardings=(whole, tuple(lie[:count])))
    return count_collectives(jitted.lower(*avals).compile().as_text()), sharding


def test_data_parallel_is_one_all_reduce_of_all_gradients() -> None:
    found, sharding = compiled(256, [(16, 16)] * 3)
    assert "256/x,16 @ 16,16 -> 256/x,16" in sharding.explain()
    assert found.count == {"all-reduce": 1}
    assert found.result_bytes["all-reduce"] == 3 * 16 * 16 * 4 + 4


def test_columns_and_rows_need_two_all_reduces_a_pair_and_one_for_the_first() -> None:
    found, sharding = compiled(8, [(32, 256), (256, 32)] * 2)
    assert "8,32 @ 32,256/x -> 8,256/x" in sharding.explain()
    # Forward one a pair, backward one a pair but the first, whose input needs no gradient.
    assert found.count == {"all-reduce": 3}
    assert found.result_bytes["all-reduce"] == 3 * 8 * 32 * 4


HLO = """HloModule loop

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b)
}

%body.1 (p: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %ar = (f32[8,4]{1,0}, bf16[2]{0}) all-reduce(%x, %y), replica_groups={{0,1}}, to_apply=%add
  ROOT %t = (s32[], f32[8,4]) tuple(%i, %ar)
}

ENTRY %main (p: f32[8,4]) -> f32[8,4] {
  %w = (s32[], f32[8,4]) while(%init), condition=%cond, body=%body.1, backend_config={"known_trip_count":{"n":"5"}}
  %ag = f32[16,4]{1,0} all-gather(%z), dimensions={0}
  ROOT %r = f32[8,4]{1,0} get-tuple-element(%w), index=1
}
"""


def test_loops_and_tuples_are_counted() -> None:
    found = count_collectives(HLO)
    assert found.count == {"all-reduce": 5, "all-gather": 1}
    assert found.result_bytes == {"all-reduce": 5 * (8 * 4 * 4 + 2 * 2), "all-gather": 16 * 4 * 4}


@pytest.mark.parametrize(
    ("groups", "devices"),
    [
        ("{{0,1},{2,3},{4,5},{6,7}}", 2),
        ("[2,4]<=[8]", 4),
        ("mesh['axis_0'=2,'axis_1'=1,'axis_2'=4] {'axis_0'}", 2),
        ("mesh['a'=2,'b'=4] {'a','b'}", 8),
        ("mesh['a'=2,'b'=4] {'b':(2)2}", 2),
        ("{}", 8),
    ],
)
def test_groups_are_read_in_each_way_that_xla_writes_them(groups: str, devices: int) -> None:
    hlo = f"""HloModule one, num_partitions=8
ENTRY %main (p: f32[16]) -> f32[16] {{
  ROOT %g = f32[16]{{0}} all-gather(%p), channel_id=1, replica_groups={groups}, dimensions={{0}}
}}
"""
    assert count_collectives(hlo).sent_bytes == pytest.approx(16 * 4 * (devices - 1) / devices)


SCATTERED = """HloModule one, num_partitions=4

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b)
}

%part (p.1: f32[8,4], p.2: s32[]) -> f32[2,4] {
  %p.1 = f32[8,4]{1,0} parameter(0)
  %p.2 = s32[] parameter(1)
  ROOT %mine = f32[2,4]{1,0} dynamic-slice(%p.1, %p.2, %p.2), dynamic_slice_sizes={2,4}
}

ENTRY %main (x: f32[8,4], i: s32[]) -> f32[2,4] {
  %x = f32[8,4]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %ar = (f32[8,4]{1,0}, f32[8,4]{1,0}) all-reduce(%x, %x), replica_groups={{0,1,2,3}}, to_apply=%add
  %first = f32[8,4]{1,0} get-tuple-element(%ar), index=0
  %second = f32[8,4]{1,0} get-tuple-element(%ar), index=1
  %kept = f32[2,4]{1,0} fusion(%first, %i), kind=kLoop, calls=%part
  %read = f32[8,4]{1,0} negate(%second)
  ROOT %r = (f32[2,4]{1,0}, f32[8,4]{1,0}) tuple(%kept, %read)
}
"""


def test_a_sum_of_which_each_device_keeps_its_part_is_told_from_one_that_is_read_whole() -> None:
    found = count_collectives(SCATTERED)
    one = 8 * 4 * 4 * 3 / 4
    assert found.sent_bytes == pytest.approx(2 * 2 * one)
    assert found.scattered_bytes == pytest.approx((1 + 2) * one)
