"""Whoever runs a step hears of devices that repeat the work of others, or wait for them."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import meshwright as mw
from meshwright.compiler.idle_devices import IdleDevicesWarning
from meshwright.compiler.method_plan import MethodPlan

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


def test_a_custom_derivative_around_all_layers() -> None:
    method = mw.LocalPipeline(num_stages=2, num_micro_batches=2)
    own = jax.custom_jvp(features)
    own.defjvp(lambda given, slopes: jax.jvp(features, given, slopes))
    whole = mw.parallelize(stepped(lambda w, x: (own(w, x) ** 2).mean()), method=method)
    with pytest.warns(IdleDevicesWarning, match=r"9\d% of the loss, in one .* is not cut \(tests.*test_idle_devices"):
        whole.lower(*SHAPES)
    assert mw.parallelize(stepped(model), method=method).lower(*SHAPES).idle == ()


def layered_step(w: Any, x: jax.Array) -> Any:
    return [one - change for one, change in zip(w, mw.grad(model)(w, x), strict=True)]


def layers(samples: int, width: int) -> tuple[Any, ...]:
    return [jax.ShapeDtypeStruct((width, width), jnp.float32)] * 12, jax.ShapeDtypeStruct((samples, width), jnp.float32)


def test_products_that_are_not_worth_sharing() -> None:
    """Every buffer is whole on every device, so no operator may be said to be split."""
    run = mw.parallelize(layered_step, method=mw.ShardParallel(devices=jax.devices()[:4]))
    said = "none of 12 products is split over 4 devices: every device does all the work"
    with pytest.warns(IdleDevicesWarning, match=f"{said}, .*; split, it would take .* of it traffic") as warned:
        compiled = run.lower(*layers(256, 256))
    assert not compiled.collectives()
    assert compiled.idle == (str(warned[0].message),)
    assert "12 operators on 4 devices: none is split, every device does all the work" in str(compiled.plan)
    with pytest.warns(IdleDevicesWarning, match="as 4 divides none of their dimensions"):
        run.lower(*layers(7, 9))


def test_parts_of_operators_are_counted() -> None:
    slow = mw.ShardParallel(devices=jax.devices()[:4], flop_per_s=1e8, link_bytes_per_s=1e9, link_latency_s=1e-8)
    shared = mw.parallelize(layered_step, method=slow).lower(*layers(256, 64))
    assert "12 operators on 4 devices: 12 in 4 parts" in str(shared.plan)
    assert shared.idle == ()
    assert MethodPlan.from_json(shared.plan.to_json()) == shared.plan
    before = {name: value for name, value in json.loads(shared.plan.to_json()).items() if name != "parts"}
    assert "split" not in str(MethodPlan.from_json(json.dumps(before)))
