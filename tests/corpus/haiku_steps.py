"""Steps in Haiku, as its examples write them."""

from __future__ import annotations

from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import optax

from tests.corpus.case import CLASSES, WIDTH, WORDS, Case, adam, case, classified, cross_entropy, sentences


class TrainingState(NamedTuple):
    params: Any
    avg_params: Any
    opt_state: Any


@case
def haiku_mnist() -> Case:
    network = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([WIDTH, WIDTH, CLASSES])(x)))
    optimiser = adam()

    def loss(params: Any, batch: Any) -> Any:
        logits = network.apply(params, batch["x"])
        labels = jax.nn.one_hot(batch["y"], CLASSES)
        l2 = 0.5 * sum(jnp.sum(jnp.square(p)) for p in jax.tree.leaves(params))
        return -jnp.sum(labels * jax.nn.log_softmax(logits)) / batch["x"].shape[0] + 1e-4 * l2

    def update(state: TrainingState, batch: Any) -> Any:
        grads = jax.grad(loss)(state.params, batch)
        updates, opt_state = optimiser.update(grads, state.opt_state)
        params = optax.apply_updates(state.params, updates)
        return TrainingState(params, optax.incremental_update(params, state.avg_params, 0.001), opt_state)

    params = network.init(jax.random.PRNGKey(0), classified()["x"])
    state = TrainingState(params, jax.tree.map(jnp.copy, params), optimiser.init(params))
    return Case(step=update, state=state, batch=classified(), after=lambda state, result: result)


@case
def haiku_batch_norm_with_state() -> Case:
    def forward(x: Any, is_training: bool) -> Any:
        x = hk.BatchNorm(True, True, 0.9)(hk.Linear(WIDTH)(x), is_training)
        return hk.Linear(CLASSES)(jax.nn.relu(x))

    network = hk.without_apply_rng(hk.transform_with_state(forward))
    optimiser = optax.sgd(0.1)

    def step(state: Any, batch: Any) -> Any:
        params, kept, opt = state

        def loss_fn(params: Any) -> Any:
            logits, after = network.apply(params, kept, batch["x"], True)
            return cross_entropy(logits, batch["y"]), after

        (loss, kept), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, opt = optimiser.update(grads, opt)
        return (optax.apply_updates(params, updates), kept, opt), loss

    params, kept = network.init(jax.random.PRNGKey(0), classified()["x"], True)
    return Case(step=step, state=(params, kept, optimiser.init(params)), batch=classified())


@case
def haiku_language_model() -> Case:
    def forward(ids: Any) -> Any:
        x = hk.Embed(WORDS, WIDTH)(ids)
        mask = jnp.tril(jnp.ones((1, 1, ids.shape[1], ids.shape[1])))
        for _ in range(2):
            h = hk.LayerNorm(-1, True, True)(x)
            x = x + hk.MultiHeadAttention(2, WIDTH // 2, w_init=hk.initializers.VarianceScaling(1.0))(h, h, h, mask)
            x = x + hk.Linear(WIDTH)(jax.nn.gelu(hk.Linear(2 * WIDTH)(hk.LayerNorm(-1, True, True)(x))))
        return hk.Linear(WORDS)(x)

    network = hk.transform(forward)
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), adam())

    def update(state: Any, batch: Any) -> Any:
        params, opt, key = state
        key, own = jax.random.split(key)

        def loss_fn(params: Any) -> Any:
            logits = network.apply(params, own, batch["ids"])
            mask = jnp.greater(batch["ids"], 0)
            each = optax.softmax_cross_entropy_with_integer_labels(logits, batch["next"])
            return jnp.sum(each * mask) / jnp.sum(mask)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt = optimiser.update(grads, opt)
        return (optax.apply_updates(params, updates), opt, key), {"loss": loss}

    params = network.init(jax.random.PRNGKey(0), sentences()["ids"])
    return Case(step=update, state=(params, optimiser.init(params), jax.random.PRNGKey(1)), batch=sentences())


@case
def haiku_lstm() -> Case:
    def forward(ids: Any) -> Any:
        core = hk.LSTM(WIDTH)
        x = jnp.swapaxes(hk.Embed(WORDS, WIDTH)(ids), 0, 1)
        hidden, _ = hk.dynamic_unroll(core, x, core.initial_state(ids.shape[0]))
        return hk.Linear(WORDS)(jnp.swapaxes(hidden, 0, 1))

    network = hk.without_apply_rng(hk.transform(forward))
    optimiser = adam()

    def update(state: Any, batch: Any) -> Any:
        params, opt = state
        loss, grads = jax.value_and_grad(lambda p: cross_entropy(network.apply(p, batch["ids"]), batch["next"]))(params)
        updates, opt = optimiser.update(grads, opt)
        return (optax.apply_updates(params, updates), opt), loss

    params = network.init(jax.random.PRNGKey(0), sentences()["ids"])
    return Case(step=update, state=(params, optimiser.init(params)), batch=sentences())
