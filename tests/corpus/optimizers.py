"""Steps with the optimizers of Optax."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from tests.corpus.case import (
    CLASSIFIER,
    Case,
    case,
    classified,
    classifier_loss,
    mlp,
    sgd,
    with_optimizer,
)


@case
def optax_adamw_schedule_clip() -> Case:
    rate = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 3, 20)
    # The schedule computes in 32 bits.
    return with_optimizer(optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, eps=1e-3)), narrow=True)


@case
def optax_lion() -> Case:
    return with_optimizer(optax.lion(1e-3))


@case
def optax_adafactor() -> Case:
    return with_optimizer(optax.adafactor(1e-2, min_dim_size_to_factor=4))


@case
def optax_muon() -> Case:
    return with_optimizer(optax.contrib.muon(1e-2))


@case
def optax_multi_transform() -> Case:
    optimizer = optax.multi_transform(
        {"slow": optax.sgd(1e-3), "fast": optax.adam(1e-2, eps=1e-3)}, lambda params: ["slow", "fast", "fast"]
    )
    return with_optimizer(optimizer)


@case
def optax_multi_steps() -> Case:
    return with_optimizer(optax.MultiSteps(optax.adam(1e-2, eps=1e-3), every_k_schedule=2), narrow=True)


@case
def optax_inject_hyperparams() -> Case:
    return with_optimizer(optax.inject_hyperparams(optax.adam)(learning_rate=1e-2, eps=1e-3))


@case
def optax_ema_of_weights() -> Case:
    optimizer = optax.sgd(0.1)

    def step(state: Any, batch: Any) -> Any:
        loss, grads = jax.value_and_grad(classifier_loss)(state["params"], batch)
        updates, opt = optimizer.update(grads, state["opt"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt": opt, "ema": optax.incremental_update(params, state["ema"], 0.1)}, loss

    params = mlp(*CLASSIFIER)
    state = {"params": params, "opt": optimizer.init(params), "ema": jax.tree.map(jnp.copy, params)}
    return Case(step=step, state=state, batch=classified())


@case
def optax_masked_decay() -> Case:
    def matrices(params: Any) -> Any:
        return jax.tree.map(lambda w: w.ndim > 1, params)

    decay = optax.masked(optax.add_decayed_weights(1e-2), matrices)
    optimizer = optax.chain(decay, optax.scale_by_adam(eps=1e-3), optax.scale(-1e-2))
    return with_optimizer(optimizer)


@case
def optax_apply_if_finite() -> Case:
    return with_optimizer(optax.apply_if_finite(optax.sgd(0.1), max_consecutive_errors=3))


@case
def optax_sam() -> Case:
    def step(params: Any, batch: Any) -> Any:
        grads = jax.grad(classifier_loss)(params, batch)
        norm = optax.tree.norm(grads)
        worse = jax.tree.map(lambda p, g: p + 0.05 * g / (norm + 1e-12), params, grads)
        loss, grads = jax.value_and_grad(classifier_loss)(worse, batch)
        return sgd(params, grads), loss

    return Case(step=step, state=mlp(*CLASSIFIER), batch=classified())
