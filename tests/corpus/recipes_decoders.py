"""Decoders of words as users put them together: attention by blocks, scanned layers, packed documents, averages."""

from __future__ import annotations

from functools import partial
from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.training import train_state

from tests.corpus.case import (
    LENGTH,
    SAMPLES,
    WIDTH,
    WORDS,
    Case,
    case,
    cross_entropy,
    in_place,
    sentences,
)
from tests.corpus.nnx_steps import adam

HEADS, LAYERS, BLOCK, AVERAGE = 2, 2, 3, 0.9


# ---- attention by blocks with a backward of its own


def _blocks(x: jax.Array) -> jax.Array:
    """Blocks of keys in front."""
    batch, words, heads, width = x.shape
    return x.reshape(batch, words // BLOCK, BLOCK, heads, width).swapaxes(0, 1)


@jax.custom_vjp
def flash_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return _flash_forward(q, k, v)[0]


def _masked_scores(q: jax.Array, k: jax.Array, first: jax.Array) -> jax.Array:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    allowed = jnp.arange(q.shape[1])[:, None] >= first + jnp.arange(k.shape[1])
    return jnp.where(allowed, scores, -1e30)


def _flash_forward(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, Any]:
    batch, words, heads, width = q.shape

    def over(carry: Any, block: Any) -> Any:
        largest, total, out = carry
        keys, values, first = block
        scores = _masked_scores(q, keys, first)
        now = jnp.maximum(largest, scores.max(-1))
        weights = jnp.exp(scores - now[..., None])
        shrink = jnp.exp(largest - now)
        out = out * shrink[..., None] + jnp.einsum("bhqk,bkhd->bhqd", weights, values)
        return (now, total * shrink + weights.sum(-1), out), None

    start = (
        jnp.full((batch, heads, words), -1e30, q.dtype),
        jnp.zeros((batch, heads, words), q.dtype),
        jnp.zeros((batch, heads, words, width), q.dtype),
    )
    (largest, total, out), _ = jax.lax.scan(over, start, (_blocks(k), _blocks(v), jnp.arange(0, words, BLOCK)))
    out = (out / total[..., None]).swapaxes(1, 2)
    return out, (q, k, v, out, largest + jnp.log(total))


def _flash_backward(kept: Any, given: jax.Array) -> Any:
    q, k, v, out, log_total = kept
    delta = jnp.einsum("bqhd,bqhd->bhq", given, out)

    def over(of_q: jax.Array, block: Any) -> Any:
        keys, values, first = block
        weights = jnp.exp(_masked_scores(q, keys, first) - log_total[..., None])
        of_values = jnp.einsum("bhqk,bqhd->bkhd", weights, given)
        of_scores = weights * (jnp.einsum("bqhd,bkhd->bhqk", given, values) - delta[..., None])
        of_scores = of_scores * q.shape[-1] ** -0.5
        of_q = of_q + jnp.einsum("bhqk,bkhd->bqhd", of_scores, keys)
        return of_q, (jnp.einsum("bhqk,bqhd->bkhd", of_scores, q), of_values)

    starts = jnp.arange(0, q.shape[1], BLOCK)
    of_q, (of_k, of_v) = jax.lax.scan(over, jnp.zeros_like(q), (_blocks(k), _blocks(v), starts))
    return of_q, of_k.swapaxes(0, 1).reshape(k.shape), of_v.swapaxes(0, 1).reshape(v.shape)


flash_attention.defvjp(_flash_forward, _flash_backward)


class FlashBlock(eqx.Module):
    """Attention and a network, of one sequence's words."""

    norm: eqx.nn.RMSNorm
    into: eqx.nn.Linear
    out: eqx.nn.Linear
    wide: eqx.nn.Linear
    narrow: eqx.nn.Linear
    heads: int = eqx.field(static=True)

    def __init__(self, width: int, heads: int, key: jax.Array):
        keys = jax.random.split(key, 4)
        self.norm = eqx.nn.RMSNorm(width)
        self.into = eqx.nn.Linear(width, 3 * width, use_bias=False, key=keys[0])
        self.out = eqx.nn.Linear(width, width, use_bias=False, key=keys[1])
        self.wide = eqx.nn.Linear(width, 2 * width, key=keys[2])
        self.narrow = eqx.nn.Linear(2 * width, width, key=keys[3])
        self.heads = heads

    def __call__(self, x: jax.Array) -> jax.Array:
        q, k, v = (
            part.reshape(1, x.shape[0], self.heads, -1)
            for part in jnp.split(jax.vmap(self.into)(jax.vmap(self.norm)(x)), 3, -1)
        )
        x = x + jax.vmap(self.out)(flash_attention(q, k, v).reshape(x.shape))
        return x + jax.vmap(lambda word: self.narrow(jax.nn.gelu(self.wide(word))))(x)


class FlashDecoder(eqx.Module):
    """A table of words tied to the logits, equal layers stacked and scanned."""

    table: eqx.nn.Embedding
    layers: FlashBlock

    def __init__(self, key: jax.Array):
        key, own = jax.random.split(key)
        self.table = eqx.nn.Embedding(WORDS, WIDTH, key=own)
        self.layers = eqx.filter_vmap(lambda k: FlashBlock(WIDTH, HEADS, k))(jax.random.split(key, LAYERS))

    def __call__(self, ids: jax.Array) -> jax.Array:
        x = jax.vmap(self.table)(ids)
        arrays, static = eqx.partition(self.layers, eqx.is_array)
        x, _ = jax.lax.scan(lambda x, layer: (eqx.filter_checkpoint(eqx.combine(layer, static))(x), None), x, arrays)
        return x @ self.table.weight.T


@case
def equinox_flash_attention_masked_decay_and_injected_rates() -> Case:
    model = FlashDecoder(jax.random.key(0))

    def chain(learning_rate: Any, decay: Any) -> optax.GradientTransformation:
        matrices = partial(jax.tree.map, lambda leaf: leaf.ndim > 1)
        return optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.scale_by_adam(eps=1e-3),
            optax.masked(optax.add_decayed_weights(decay), matrices),
            optax.scale_by_learning_rate(learning_rate),
        )

    optimizer = optax.inject_hyperparams(chain)(optax.cosine_decay_schedule(1e-2, 10), 0.1)

    @eqx.filter_value_and_grad
    def loss(model: FlashDecoder, batch: Any) -> jax.Array:
        return cross_entropy(jax.vmap(model)(batch["ids"]), batch["next"])

    def step(state: Any, batch: Any) -> Any:
        model, moments = state
        value, grads = loss(model, batch)
        changes, moments = optimizer.update(grads, moments, eqx.filter(model, eqx.is_inexact_array))
        rate = moments.hyperparams["learning_rate"]
        return (eqx.apply_updates(model, changes), moments), {"loss": value, "rate": rate}

    return Case(
        step=step,
        state=(model, optimizer.init(eqx.filter(model, eqx.is_inexact_array))),
        batch=sentences(),
        jit=eqx.filter_jit,
    )


# ---- Haiku: layers stacked, remat, averages and dropout


@case
def haiku_stacked_layers_with_averages() -> Case:
    def model(ids: Any, training: bool) -> Any:
        x = hk.Embed(WORDS, WIDTH)(ids) + hk.get_parameter("places", [LENGTH, WIDTH], init=hk.initializers.Constant(0))

        @hk.layer_stack(LAYERS)
        def layer(x: Any) -> Any:
            normed = hk.LayerNorm(-1, True, True)(x)
            mask = jnp.tril(jnp.ones((LENGTH, LENGTH)))[None, None]
            attend = hk.MultiHeadAttention(HEADS, WIDTH // HEADS, w_init=hk.initializers.VarianceScaling())
            x = x + attend(normed, normed, normed, mask)
            return x + hk.Linear(WIDTH)(jax.nn.gelu(hk.Linear(2 * WIDTH)(hk.LayerNorm(-1, True, True)(x))))

        x = layer(x)
        if training:
            x = hk.dropout(hk.next_rng_key(), 0.1, x)
        return hk.Linear(WORDS)(x)

    apart = hk.transform(model)
    averaged = hk.without_apply_rng(hk.transform_with_state(lambda p: hk.EMAParamsTree(AVERAGE)(p)))
    optimizer = optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 10), eps=1e-3)
    batch = sentences()
    params = apart.init(jax.random.PRNGKey(0), batch["ids"], True)
    _, average = averaged.init(None, params)

    def step(state: Any, batch: Any) -> Any:
        params, moments, average, key = state
        key, own = jax.random.split(key)
        value, grads = jax.value_and_grad(
            lambda params: cross_entropy(apart.apply(params, own, batch["ids"], True), batch["next"])
        )(params)
        changes, moments = optimizer.update(grads, moments, params)
        params = optax.apply_updates(params, changes)
        _, average = averaged.apply(None, average, params)
        return (params, moments, average, key), value

    state = params, optimizer.init(params), average, jax.random.PRNGKey(5)
    return Case(step=step, state=state, batch=batch, narrow=True)


# ---- Flax: grouped queries, rotary angles, a window, remat of nnx, packed documents


def _turned(x: jax.Array, places: jax.Array) -> jax.Array:
    half = x.shape[-1] // 2
    angles = places[..., None, None] / 10_000 ** (jnp.arange(half) / half)
    one, other = jnp.split(x, 2, -1)
    return jnp.concatenate(
        [one * jnp.cos(angles) - other * jnp.sin(angles), one * jnp.sin(angles) + other * jnp.cos(angles)], -1
    ).astype(x.dtype)


class GroupedBlock(nnx.Module):
    """Two queries of each key, a window, scores capped."""

    def __init__(self, rngs: nnx.Rngs):
        size = WIDTH // HEADS
        self.before, self.between = nnx.RMSNorm(WIDTH, rngs=rngs), nnx.RMSNorm(WIDTH, rngs=rngs)
        self.q_norm, self.k_norm = nnx.RMSNorm(size, rngs=rngs), nnx.RMSNorm(size, rngs=rngs)
        self.q = nnx.LinearGeneral(WIDTH, (HEADS, size), use_bias=False, rngs=rngs)
        self.kv = nnx.LinearGeneral(WIDTH, (2, 1, size), use_bias=False, rngs=rngs)
        self.out = nnx.LinearGeneral((HEADS, size), WIDTH, axis=(-2, -1), use_bias=False, rngs=rngs)
        self.gate = nnx.Linear(WIDTH, 2 * WIDTH, use_bias=False, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 2 * WIDTH, use_bias=False, rngs=rngs)
        self.down = nnx.Linear(2 * WIDTH, WIDTH, use_bias=False, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x: jax.Array, segments: jax.Array, places: jax.Array) -> jax.Array:
        normed = self.before(x)
        q = _turned(self.q_norm(self.q(normed)), places)
        k, v = jnp.moveaxis(self.kv(normed), -3, 0)
        k = jnp.repeat(_turned(self.k_norm(k), places), HEADS, -2)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        scores = 5.0 * jnp.tanh(scores / 5.0)
        apart = jnp.arange(LENGTH)[:, None] - jnp.arange(LENGTH)
        allowed = (apart >= 0) & (apart < 4) & (segments[:, :, None] == segments[:, None, :])
        weights = jax.nn.softmax(jnp.where(allowed[:, None], scores, -1e9), -1)
        x = x + self.drop(self.out(jnp.einsum("bhqk,bkhd->bqhd", weights, jnp.repeat(v, HEADS, -2))))
        normed = self.between(x)
        return x + self.down(nnx.silu(self.gate(normed)) * self.up(normed))


class PackedDecoder(nnx.Module):
    """Tied table of words, layers computed again but for their products."""

    def __init__(self, rngs: nnx.Rngs):
        self.table = nnx.Embed(WORDS, WIDTH, rngs=rngs)
        self.layers = nnx.List([GroupedBlock(rngs) for _ in range(LAYERS)])
        self.norm = nnx.RMSNorm(WIDTH, rngs=rngs)

    def __call__(self, ids: jax.Array, segments: jax.Array, places: jax.Array) -> jax.Array:
        x = self.table(ids) * WIDTH**0.5
        run = nnx.remat(GroupedBlock.__call__, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
        for layer in self.layers:
            x = run(layer, x, segments, places)
        return self.table.attend(self.norm(x))


@case
def nnx_packed_documents_with_grouped_queries_and_remat() -> Case:
    model = PackedDecoder(nnx.Rngs(0, dropout=1))
    optimizer = nnx.Optimizer(model, optax.MultiSteps(adam(), every_k_schedule=2), wrt=nnx.Param)
    metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"), accuracy=nnx.metrics.Accuracy())

    def loss(model: PackedDecoder, batch: Any) -> Any:
        logits = model(batch["ids"], batch["segments"], batch["places"])
        mask = batch["segments"] > 0
        each = optax.softmax_cross_entropy_with_integer_labels(logits, batch["next"])
        steady = 1e-4 * jax.nn.logsumexp(logits, -1) ** 2
        return ((each + steady) * mask).sum() / mask.sum(), logits

    def step(state: Any, batch: Any) -> Any:
        (value, logits), grads = nnx.value_and_grad(loss, has_aux=True)(state["model"], batch)
        state["metrics"].update(loss=value, logits=logits, labels=batch["next"])
        state["optimizer"].update(state["model"], grads)
        return value

    lengths = np.sort(np.random.RandomState(4).randint(1, LENGTH, (SAMPLES, 2)), 1)
    index = np.arange(LENGTH)
    segments = 1 + (index >= lengths[:, :1]) - 2 * (index >= lengths[:, 1:] + 1)
    places = np.where(segments == 2, index - lengths[:, :1], index)
    batch = {
        **sentences(),
        "segments": jnp.asarray(segments.clip(0), jnp.int32),
        "places": jnp.asarray(places, jnp.int32),
    }
    state = nnx.Dict({"model": model, "optimizer": optimizer, "metrics": metrics})
    return Case(step=step, state=state, batch=batch, after=in_place, jit=nnx.jit, narrow=True)


# ---- Flax Linen: scanned layers with a policy, logical axes, averages, dropout


class LogicalLayer(nn.Module):
    """Scanned over, with names of axes."""

    @nn.compact
    def __call__(self, x: Any, deterministic: bool) -> Any:
        def kernel(*names: str) -> Any:
            return nn.with_logical_partitioning(nn.initializers.lecun_normal(), names)

        normed = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(
            HEADS, kernel_init=kernel("embed", "heads", "kv"), out_kernel_init=kernel("heads", "kv", "embed")
        )(normed)
        x = nn.with_logical_constraint(x, ("batch", "length", "embed"))
        wide = nn.gelu(nn.Dense(2 * WIDTH, kernel_init=kernel("embed", "mlp"))(nn.LayerNorm()(x)))
        wide = nn.Dropout(0.1, deterministic=deterministic)(wide)
        return x + nn.Dense(WIDTH, kernel_init=kernel("mlp", "embed"))(wide), None


class LogicalDecoder(nn.Module):
    """Layers of one body."""

    @nn.compact
    def __call__(self, ids: Any, deterministic: bool = False) -> Any:
        x = nn.Embed(WORDS, WIDTH)(ids)
        body = nn.remat(
            LogicalLayer, policy=jax.checkpoint_policies.nothing_saveable, prevent_cse=False, static_argnums=(2,)
        )
        x, _ = nn.scan(
            body,
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=nn.broadcast,
            length=LAYERS,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )(name="layers")(x, deterministic)
        return nn.Dense(WORDS)(nn.LayerNorm()(x))


class Averaged(train_state.TrainState):
    """Besides, averages and a key."""

    average: Any = None
    key: Any = None


@case
def linen_scanned_layers_with_logical_axes_and_averages() -> Case:
    model = LogicalDecoder()
    batch = sentences()
    params = nn.meta.unbox(model.init(jax.random.key(0), batch["ids"], True)["params"])
    rate = optax.linear_schedule(1e-2, 1e-3, 10)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, eps=1e-3, mu_dtype=jnp.bfloat16))
    state = Averaged.create(
        apply_fn=model.apply, params=params, tx=optimizer, average=jax.tree.map(jnp.copy, params), key=jax.random.key(1)
    )

    def step(state: Averaged, batch: Any) -> Any:
        own = jax.random.fold_in(state.key, state.step)

        def loss(params: Any) -> Any:
            logits = state.apply_fn({"params": params}, batch["ids"], rngs={"dropout": own})
            return cross_entropy(logits, batch["next"]), (logits.argmax(-1) == batch["next"]).mean()

        (value, right), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        state = state.apply_gradients(grads=grads)
        state = state.replace(average=optax.incremental_update(state.params, state.average, 1 - AVERAGE))
        return state, {"loss": value, "accuracy": right}

    return Case(step=step, state=state, batch=batch, digits=1e-2)
