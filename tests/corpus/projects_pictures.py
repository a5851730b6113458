"""Small projects with pictures, each step a whole one as its authors write it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import nnx
from flax.training import train_state
from jax import lax

from tests.corpus.case import (
    CLASSES,
    FEATURES,
    SAMPLES,
    WIDTH,
    Case,
    adam,
    case,
    drawn,
    forward,
    in_place,
    mlp,
    pictures,
    whole,
)

DIM = 8


@case
def nnx_pictures_in_patches_with_dropped_paths_mixup_and_slow_weights() -> Case:
    """DeiT as a recipe has it: registers, layer scale, stochastic depth, mixup, smoothed targets, EMA."""

    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs, drop: float) -> None:
            self.norm1, self.norm2 = nnx.LayerNorm(DIM, rngs=rngs), nnx.LayerNorm(DIM, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(2, DIM, decode=False, rngs=rngs)
            self.up, self.down = nnx.Linear(DIM, 16, rngs=rngs), nnx.Linear(16, DIM, rngs=rngs)
            self.scale1, self.scale2 = nnx.Param(jnp.full(DIM, 0.1)), nnx.Param(jnp.full(DIM, 0.1))
            self.path = nnx.Dropout(drop, broadcast_dims=(1, 2), rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = x + self.path(self.scale1[...] * self.attention(self.norm1(x)))
            return x + self.path(self.scale2[...] * self.down(nnx.gelu(self.up(self.norm2(x)))))

    class Patches(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.patch = nnx.Conv(2, DIM, (3, 3), strides=(3, 3), padding="VALID", rngs=rngs)
            self.place = nnx.Param(0.02 * jax.random.normal(rngs.params(), (1, 4, DIM)))
            self.extra = nnx.Param(0.02 * jax.random.normal(rngs.params(), (1, 3, DIM)))
            self.blocks = nnx.List([Block(rngs, 0.1 * depth) for depth in range(2)])
            self.norm, self.head = nnx.LayerNorm(DIM, rngs=rngs), nnx.Linear(DIM, CLASSES, rngs=rngs)

        def __call__(self, images: Any) -> Any:
            x = self.patch(images).reshape(images.shape[0], -1, DIM) + self.place[...]
            x = jnp.concatenate([jnp.broadcast_to(self.extra[...], (x.shape[0], 3, DIM)), x], 1)
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x)[:, 0])

    def step(model: Any, optimizer: Any, slow: Any, batch: Any) -> Any:
        lam = batch["lam"]
        images = lam * batch["image"] + (1 - lam) * batch["image"][::-1]
        labels = optax.smooth_labels(jax.nn.one_hot(batch["label"], CLASSES), 0.1)
        targets = lam * labels + (1 - lam) * labels[::-1]

        def loss_fn(model: Any) -> Any:
            return optax.softmax_cross_entropy(model(images), targets).mean()

        loss, grads = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        decayed = jax.tree.map(lambda s, p: 0.9 * s + 0.1 * p, nnx.state(slow, nnx.Param), nnx.state(model, nnx.Param))
        nnx.update(slow, decayed)
        return loss, optax.global_norm(grads)

    model = Patches(nnx.Rngs(0))
    rate = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 10)
    optimizer = nnx.Optimizer(model, optax.adamw(rate, eps=1e-3, weight_decay=0.05), wrt=nnx.Param)
    return Case(
        step=step,
        state=(model, optimizer, Patches(nnx.Rngs(0))),
        batch={**pictures(), "lam": jnp.float32(0.7)},
        after=in_place,
        jit=nnx.jit,
        narrow=True,
        call=lambda run, state, batch: run(*state, batch),
        options={"batch_argnums": 3},
    )


@case
def linen_autoencoder_of_two_levels_with_keys_of_its_collections() -> Case:
    class Ladder(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            low = nn.silu(nn.Conv(4, (3, 3), strides=(2, 2))(x))
            high = nn.silu(nn.Dense(WIDTH)(low.reshape(x.shape[0], -1)))
            mean2, log2 = jnp.split(nn.Dense(8)(high), 2, -1)
            z2 = mean2 + jnp.exp(0.5 * log2) * jax.random.normal(self.make_rng("latent"), mean2.shape, mean2.dtype)
            prior_mean, prior_log = jnp.split(nn.Dense(8)(nn.silu(nn.Dense(WIDTH)(z2))), 2, -1)
            mean1, log1 = jnp.split(nn.Dense(8)(jnp.concatenate([low.reshape(x.shape[0], -1), z2], -1)), 2, -1)
            z1 = mean1 + jnp.exp(0.5 * log1) * jax.random.normal(self.make_rng("latent"), mean1.shape, mean1.dtype)
            h = nn.Dense(36)(jnp.concatenate([z1, z2], -1)).reshape(-1, 3, 3, 4)
            out = nn.ConvTranspose(2, (3, 3), strides=(2, 2))(nn.silu(h))
            kl2 = -0.5 * (1 + log2 - mean2**2 - jnp.exp(log2)).sum(-1)
            gap = jnp.exp(log1 - prior_log) + (mean1 - prior_mean) ** 2 * jnp.exp(-prior_log)
            kl1 = 0.5 * (prior_log - log1 + gap - 1).sum(-1)
            return out, kl1, kl2

    model = Ladder()

    class State(train_state.TrainState):
        key: Any

    def train_step(state: State, batch: Any) -> Any:
        key = jax.random.fold_in(state.key, state.step)

        def loss_fn(params: Any) -> Any:
            out, kl1, kl2 = state.apply_fn({"params": params}, batch["image"], rngs={"latent": key})
            error = ((out - batch["image"]) ** 2).sum((1, 2, 3))
            warm = jnp.minimum(1.0, state.step / 3)
            loss = (error + warm * (jnp.maximum(kl1, 0.5) + jnp.maximum(kl2, 0.5))).mean()
            return loss, {"error": error.mean(), "kl": (kl1 + kl2).mean()}

        (loss, aux), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        return state.apply_gradients(grads=grads), {"loss": loss, **aux}

    rngs = {"params": jax.random.key(0), "latent": jax.random.key(1)}
    params = model.init(rngs, pictures()["image"])["params"]
    state = State.create(apply_fn=model.apply, params=params, tx=optax.adamax(1e-3, eps=1e-3), key=jax.random.key(2))
    return Case(step=train_step, state=state, batch=pictures())


@case
def linen_noise_predicted_with_skips_attention_and_zero_signal_at_the_end() -> Case:
    """Velocities with a rescaled cosine schedule: a small U-Net, group norm, attention below, EMA by debiased steps."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any, t: Any) -> Any:
            angles = t[:, None] * jnp.exp(-jnp.arange(4.0) / 4 * 5)
            time = nn.silu(nn.Dense(WIDTH)(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)))
            one = nn.Conv(4, (3, 3))(x)
            scale, shift = jnp.split(nn.Dense(8)(time)[:, None, None], 2, -1)
            one = one + nn.Conv(4, (3, 3))(nn.silu(nn.GroupNorm(2)(one) * (1 + scale) + shift))
            two = nn.Conv(WIDTH, (3, 3), strides=(2, 2))(one)
            flat = nn.GroupNorm(2)(two).reshape(x.shape[0], -1, WIDTH)
            two = two + nn.MultiHeadDotProductAttention(2)(flat, flat).reshape(two.shape)
            up = jax.image.resize(two, (*one.shape[:3], WIDTH), "nearest")
            return nn.Conv(2, (3, 3), kernel_init=nn.initializers.zeros)(nn.silu(jnp.concatenate([up, one], -1)))

    class State(train_state.TrainState):
        slow: Any
        key: Any

    def step(state: State, images: Any) -> Any:
        key, one, two = jax.random.split(state.key, 3)
        t = jax.random.uniform(one, (images.shape[0],))
        noise = jax.random.normal(two, images.shape, images.dtype)
        alpha, sigma = (f(t * jnp.pi / 2)[:, None, None, None] for f in (jnp.cos, jnp.sin))
        weight = jnp.minimum((alpha / sigma) ** 2, 5.0) / ((alpha / sigma) ** 2 + 1)

        def loss_fn(params: Any) -> Any:
            said = state.apply_fn({"params": params}, alpha * images + sigma * noise, t)
            return (weight * (said - (alpha * noise - sigma * images)) ** 2).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        after = state.apply_gradients(grads=grads)
        rate = jnp.minimum(0.99, (1 + after.step) / (10 + after.step))
        slow = jax.tree.map(lambda s, p: (rate * s + (1 - rate) * p).astype(s.dtype), state.slow, after.params)
        return after.replace(slow=slow, key=key), loss

    model, images = Net(), pictures()["image"]
    params = model.init(jax.random.key(0), images, jnp.zeros(SAMPLES))["params"]
    state = State.create(
        apply_fn=model.apply, params=params, tx=adam(), slow=jax.tree.map(jnp.copy, params), key=jax.random.key(1)
    )
    return Case(step=step, state=state, batch=images)


@case
def jax_boxes_assigned_to_queries_at_least_cost() -> Case:
    """DETR: each picture's objects are matched with queries by the Hungarian method, inside the loss."""
    queries, objects = 4, 3

    def predicted(params: Any, x: Any) -> Any:
        h = forward(params["body"], x)[:, None] + params["queries"]
        h = jax.nn.relu(h @ params["mix"])
        return h @ params["classes"], jax.nn.sigmoid(h @ params["boxes"])

    def one(logits: Any, boxes: Any, labels: Any, wanted: Any) -> Any:
        distance = jnp.abs(boxes[:, None] - wanted[None]).sum(-1)
        cost = lax.stop_gradient(distance - jax.nn.softmax(logits)[:, labels])
        rows, columns = optax.assignment.hungarian_algorithm(cost)
        targets = jnp.full(queries, CLASSES).at[rows].set(labels[columns])
        weights = jnp.where(targets == CLASSES, 0.1, 1.0)
        classes = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        return (weights * classes).sum(), weights.sum(), distance[rows, columns].sum()

    def loss_fn(params: Any, batch: Any) -> Any:
        logits, boxes = predicted(params, batch["x"])
        classes, weights, distance = jax.vmap(one)(logits, boxes, batch["labels"], batch["boxes"])
        return classes.sum() / weights.sum() + distance.mean() / objects, distance.max()

    optimizer = optax.adamw(1e-2, eps=1e-3)

    def step(state: Any, batch: Any) -> Any:
        params, opt = state
        (loss, worst), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, batch)
        updates, opt = optimizer.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), loss, worst

    params = {
        "body": mlp(FEATURES, WIDTH, WIDTH),
        "queries": drawn(queries, WIDTH, seed=5),
        "mix": drawn(WIDTH, WIDTH, seed=6, scale=0.3),
        "classes": drawn(WIDTH, CLASSES + 1, seed=7, scale=0.3),
        "boxes": drawn(WIDTH, 4, seed=8, scale=0.3),
    }
    batch = {
        "x": drawn(SAMPLES, FEATURES, seed=1),
        "labels": whole(CLASSES, SAMPLES, objects, seed=2),
        "boxes": jax.nn.sigmoid(drawn(SAMPLES, objects, 4, seed=3)),
    }
    return Case(step=step, state=(params, optimizer.init(params)), batch=batch)
