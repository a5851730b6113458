"""Losses drawn at random: with micro-batches they are those of the whole batch, or refused; never something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest

import meshwright as mw
from meshwright.errors import InputError
from meshwright.runtime.devices import jax_precision
from tests.runtime.micro_batch_cases import difference
from tests.runtime.random_losses import batch, random_loss, weights

METHODS: dict[str, Callable[[int], Any]] = {
    "one device": lambda parts: mw.LocalPipeline(num_stages=1, num_micro_batches=parts),
    "data": lambda parts: mw.DataParallel(num_micro_batches=parts, devices=jax.devices()[:2]),
    "ZeRO-2": lambda parts: mw.Zero2Parallel(num_micro_batches=parts, devices=jax.devices()[:2]),
    "ZeRO-3": lambda parts: mw.Zero3Parallel(num_micro_batches=parts, devices=jax.devices()[:2]),
    "pipeline": lambda parts: mw.LocalPipeline(num_stages=2, num_micro_batches=parts),
    "shard": lambda parts: mw.ShardParallel(num_micro_batches=parts, devices=jax.devices()[:2]),
    "auto": lambda parts: mw.Auto(num_micro_batches=parts, devices=jax.devices()[:2]),
}


def ran(seeds: range, methods: list[str], parts: tuple[int, ...]) -> tuple[int, int]:
    """Losses that ran exactly, and those that were refused."""
    exact = refused = 0
    for seed in seeds:
        for method in methods:
            for count in parts:
                try:
                    found = difference(random_loss(seed), METHODS[method](count), weights(), batch())
                except InputError:
                    refused += 1
                    continue
                assert found < 1e-9, f"loss {seed} with {count} micro-batches under {method}"
                exact += 1
    return exact, refused


def test_some_losses_are_exact_and_some_are_refused() -> None:
    with jax_precision("fp64"):
        exact, refused = ran(range(16), ["one device"], (4,))
    assert exact >= 6
    assert refused >= 1


def test_a_gradient_that_is_constant_has_the_sharding_of_its_weight() -> None:
    """One that is not would be donated in vain, which jax warns of."""
    with jax_precision("fp64"):
        assert ran(range(100, 101), ["ZeRO-2", "ZeRO-3"], (1,)) == (2, 0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::meshwright.compiler.idle_devices.IdleDevicesWarning")
def test_many_losses_under_every_method() -> None:
    with jax_precision("fp64"):
        exact, _ = ran(range(100, 140), list(METHODS), (1, 2, 4))
    assert exact >= 400
