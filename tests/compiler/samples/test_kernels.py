"""Pallas kernels whose grid walks along the samples run in micro-batches and on data ranks; others are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

import meshwright as mw
from meshwright.compiler.lowering.whole import WholeStepWarning
from tests.corpus.case import cross_entropy, drawn, sentences, sgd
from tests.corpus.table import arrays, difference

WIDTH, WORDS = 8, 12


def _called(kernel: Callable[..., None], x: Any, place: Callable[[Any], Any], scratch: Any = ()) -> Any:
    size, length, width = x.shape
    block = (1, length, width)
    return pl.pallas_call(
        kernel,
        grid=(size,),
        in_specs=[pl.BlockSpec(block, lambda i: (i, 0, 0))],
        out_specs=pl.BlockSpec(block, lambda i: (place(i), 0, 0)),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=scratch,
        interpret=True,
    )(x)


def _doubles(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * 2


def _numbers(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * (1 + pl.program_id(0) % 4).astype(x_ref.dtype)


def _carries(x_ref: Any, o_ref: Any, kept_ref: Any) -> None:
    kept_ref[...] = jnp.where(pl.num_programs(0) > 0, x_ref[...], kept_ref[...])
    o_ref[...] = kept_ref[...] * 2


def _step(kernel: Any, place: Any, scratch: Any = ()) -> Any:
    @jax.custom_vjp
    def layer(x: Any) -> Any:
        return _called(kernel, x, place, scratch)

    layer.defvjp(
        lambda x: (_called(kernel, x, place, scratch), None), lambda _, g: (_called(kernel, g, place, scratch),)
    )

    def step(params: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            return cross_entropy(jnp.tanh(layer(params["words"][batch["ids"]])) @ params["out"], batch["next"])

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads), value

    return step


@pytest.fixture(scope="module")
def params() -> Any:
    return {"words": drawn(WORDS, WIDTH), "out": drawn(WIDTH, WORDS, seed=1)}


@pytest.mark.parametrize("method", [mw.DataParallel(num_micro_batches=2), mw.Zero3Parallel()])
def test_a_kernel_of_single_samples_runs_on_its_part(params: Any, method: Any) -> None:
    step, batch = _step(_doubles, lambda i: i), sentences()
    expected = jax.jit(step)(params, batch)
    run = mw.parallelize(step, method=method)
    assert difference(arrays(run(params, batch)), arrays(expected)) < 1e-5
    assert "every data rank runs the loss of its own samples" in run.compiled().reductions


@pytest.mark.parametrize(
    ("kernel", "place", "scratch"),
    [
        (_numbers, lambda i: i, ()),
        (_doubles, lambda i: 15 - i, ()),
        (_carries, lambda i: i, (jax.ShapeDtypeStruct((1, 6, WIDTH), jnp.float32),)),
    ],
    ids=["asks for its number", "turns samples over", "keeps memory between samples"],
)
def test_a_kernel_that_may_mix_samples_runs_without_micro_batches(
    params: Any, kernel: Any, place: Any, scratch: Any
) -> None:
    if scratch:
        from jax.experimental.pallas import tpu

        scratch = [tpu.VMEM(one.shape, one.dtype) for one in scratch]
    run = mw.parallelize(_step(kernel, place, scratch), method=mw.DataParallel(num_micro_batches=2))
    with pytest.warns(WholeStepWarning, match="without its 2 micro-batches: .*pallas_call mixes samples"):
        run.lower(params, sentences())
