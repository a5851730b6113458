"""Products of 16 bits: plans end where one device ends, and scales of fp16 losses follow what overflows."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshwright.runtime.parity import parity_of, run_alone, run_parallel
from meshwright.runtime.training.run import Training
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.model import LayerRun, LayerSpec
from meshwright.specs.row_text import parse_row
from meshwright.zoo.tiny import TINY
from meshwright.zoo.training import LossScaling

LAYER = LayerSpec(attention=Attention(heads=4, kv_heads=2, head_dim=4), mlp=DenseMlp(ffn_hidden=32, gated=True))
SMALL = replace(TINY["llama-tiny"], hidden=16, vocab=24, runs=(LayerRun(layers=(LAYER,), repeats=2),))


def training(plan: str, compute: str) -> Training:
    row = parse_row(f"{plan}.gbs16", devices=8, global_batch=16, schedules=())
    return Training(spec=SMALL, row=row, stage_layers=(1, 1) if row.pp > 1 else (2,), seq_len=8, compute=compute)


@pytest.mark.parametrize(
    ("plan", "compute", "dtype"),
    [
        pytest.param("dp8.z3.mbs2", "float16", "fp16", marks=pytest.mark.slow),
        ("pp2.dp4.z1.mbs2", "float16", "fp16"),
        ("pp2.dp4.z1.mbs2", "bfloat16", "bf16"),
    ],
)
def test_plans_in_16_bits_end_where_one_device_ends(plan: str, compute: str, dtype: str) -> None:
    one = training(plan, compute)
    state = one.initial()
    parity = parity_of(run_parallel(one, jax.devices(), 2, state), run_alone(one, 2, state), dtype)
    assert parity.holds, (parity.loss, parity.gradient, parity.weight)


def test_a_step_that_overflows_changes_nothing_but_the_scale() -> None:
    """fp16 ends at 65,504: gradients of a loss scaled by 2^40 are not finite."""
    one = training("dp8.mbs2", "float16")
    step, state = one.step(jax.devices()), one.initial()
    high = state | {"scaling": state["scaling"] | {"scale": jnp.asarray(2.0**40, jnp.float32)}}
    after, _ = step(high, one.batch(0))
    assert float(after["scaling"]["scale"]) == 2.0**39
    assert int(after["step"]) == 0
    jax.tree.map(np.testing.assert_array_equal, after["weights"], state["weights"])
    went_on, loss = step(state, one.batch(0))
    assert np.isfinite(float(loss))
    assert int(went_on["step"]) == 1
    step.close()


def test_finite_steps_in_a_row_double_the_scale() -> None:
    scaling = replace(LossScaling(), grow_every=2)
    held = scaling.init()
    scales = []
    for finite in (True, True, True, False, True):
        held = scaling.after(held, finite=jnp.asarray(finite))
        scales.append(float(held["scale"]) / scaling.first)
    assert scales == [1.0, 2.0, 2.0, 1.0, 1.0]
