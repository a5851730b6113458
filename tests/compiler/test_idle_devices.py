"""Whoever runs a step hears of devices that repeat the work of others, or wait for them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import meshwright as mw
from meshwright.compiler.idle_devices import IdleDevicesWarning

SHAPES = [jax.ShapeDtypeStruct((4, 8, 8), jnp.float32), jax.ShapeDtypeStruct((8, 8), jnp.float32)]


def features(w: jax.Array, x: jax.Array) -> jax.Array:
    for layer in w:
        x = jnp.tanh(x @ layer)
    return x


def model(w: jax.Array, x: jax.Array) -> jax.Array:
    return (features(w, x) ** 2).mean()


def stepped(loss: Any) -> Any:
    return lambda w, x: w - mw.grad(loss)(w, x)


def test_samples_that_ranks_cannot_share() -> None:
    run = mw.parallelize(stepped(model), method=mw.DataParallel(num_micro_batches=4, devices=jax.devices()[:4]))
    with pytest.warns(IdleDevicesWarning, match="micro-batches of 2 samples are not shared by 4 data ranks") as said:
        compiled = run.lower(*SHAPES)
    assert "num_micro_batches=2 would share them" in str(said[0].message)
    assert compiled.idle == (str(said[0].message),)
    assert compiled.idle[0] in compiled.explain()


def test_a_checkpoint_around_all_layers() -> None:
    method = mw.LocalPipeline(num_stages=2, num_micro_batches=2)
    whole = mw.parallelize(stepped(lambda w, x: (jax.checkpoint(features)(w, x) ** 2).mean()), method=method)
    with pytest.warns(IdleDevicesWarning, match=r"9\d% of the loss, in one .* is not cut \(tests.*test_idle_devices"):
        whole.lower(*SHAPES)
    assert mw.parallelize(stepped(model), method=method).lower(*SHAPES).idle == ()
