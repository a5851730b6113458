"""Whole training steps of everyday work: what other cases hold one by one, together in one step."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import lax

from tests.corpus.case import (
    CLASSES,
    FEATURES,
    LENGTH,
    SAMPLES,
    WIDTH,
    WORDS,
    Case,
    adam,
    case,
    classified,
    cross_entropy,
    drawn,
    forward,
    in_place,
    mlp,
    pictures,
    sentences,
    sgd,
    whole,
)


@case
def nnx_convolutions_with_batch_norm_dropout_and_accumulated_updates() -> Case:
    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.conv = nnx.Conv(2, 4, kernel_size=(3, 3), rngs=rngs)
            self.norm = nnx.BatchNorm(4, momentum=0.9, rngs=rngs)
            self.drop = nnx.Dropout(0.3, rngs=rngs)
            self.head = nnx.Linear(36, CLASSES, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = nnx.max_pool(nnx.relu(self.norm(self.conv(x))), window_shape=(2, 2), strides=(2, 2))
            return self.head(self.drop(x.reshape(x.shape[0], -1)))

    def loss_fn(model: Any, batch: Any) -> Any:
        logits = model(batch["image"])
        return cross_entropy(logits, batch["label"]), (logits.argmax(-1) == batch["label"]).mean()

    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        model.train()
        (loss, accuracy), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model, batch)
        optimizer.update(model, grads)
        return {"loss": loss, "accuracy": accuracy, "norm": optax.global_norm(grads)}

    model = Net(nnx.Rngs(0))
    tx = optax.MultiSteps(optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)), every_k_schedule=2)
    return Case(
        step=step,
        state=(model, nnx.Optimizer(model, tx, wrt=nnx.Param)),
        batch=pictures(),
        after=in_place,
        jit=nnx.jit,
        call=lambda run, state, batch: run(*state, batch),
        options={"batch_argnums": 2},
        narrow=True,
    )


@case
def equinox_batch_norm_state_and_dropout_of_every_sample() -> Case:
    class Net(eqx.Module):
        one: eqx.nn.Linear
        norm: eqx.nn.BatchNorm
        drop: eqx.nn.Dropout
        two: eqx.nn.Linear

        def __init__(self, key: Any) -> None:
            a, b = jax.random.split(key)
            self.one, self.two = eqx.nn.Linear(FEATURES, WIDTH, key=a), eqx.nn.Linear(WIDTH, CLASSES, key=b)
            self.norm = eqx.nn.BatchNorm(WIDTH, axis_name="batch", mode="batch")
            self.drop = eqx.nn.Dropout(0.2)

        def __call__(self, x: Any, state: Any, key: Any) -> Any:
            x, state = self.norm(self.one(x), state)
            return self.two(self.drop(jax.nn.gelu(x), key=key)), state

    optimizer = optax.chain(optax.adaptive_grad_clip(0.5), adam(), optax.ema(0.9))

    @partial(eqx.filter_value_and_grad, has_aux=True)
    def loss_fn(model: Any, state: Any, batch: Any, keys: Any) -> Any:
        many = jax.vmap(model, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))
        logits, state = many(batch["x"], state, keys)
        return cross_entropy(logits, batch["y"]), state

    def step(carried: Any, batch: Any) -> Any:
        model, state, opt_state, key = carried
        key, own = jax.random.split(key)
        (loss, state), grads = loss_fn(model, state, batch, jax.random.split(own, len(batch["x"])))
        updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_array))
        return (eqx.apply_updates(model, updates), state, opt_state, key), loss

    model, state = eqx.nn.make_with_state(Net)(jax.random.key(0))
    carried = (model, state, optimizer.init(eqx.filter(model, eqx.is_array)), jax.random.key(1))
    return Case(step=step, state=carried, batch=classified(), jit=eqx.filter_jit)


@case
def optax_schedule_free_in_multi_steps_with_noise_and_averages() -> Case:
    inner = optax.contrib.schedule_free(optax.chain(optax.clip(0.5), optax.sgd(0.05)), 0.05, b1=0.9)
    optimizer = optax.MultiSteps(inner, every_k_schedule=lambda n: jnp.where(n < 1, 1, 2))
    average = optax.ema(0.9)

    def step(state: Any, batch: Any) -> Any:
        params, opt_state, kept = state
        loss, grads = jax.value_and_grad(lambda p: cross_entropy(forward(p, batch["x"]), batch["y"]))(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        smooth, kept = average.update(params, kept)
        value = cross_entropy(forward(smooth, batch["x"]), batch["y"])
        return (params, opt_state, kept), (loss, value, optimizer.has_updated(opt_state))

    params = mlp(FEATURES, WIDTH, WIDTH, CLASSES)
    state = (params, optimizer.init(params), average.init(params))
    return Case(step=step, state=state, batch=classified(), narrow=True)


@case
def haiku_resnet_block_with_state_dropout_and_averaged_parameters() -> Case:
    def net(x: Any, training: bool) -> Any:
        x = hk.Conv2D(4, 3)(x)
        skip = x
        x = jax.nn.relu(hk.BatchNorm(True, True, 0.9)(x, training))
        x = skip + hk.Conv2D(4, 3)(x)
        x = x.mean((1, 2))
        x = hk.dropout(hk.next_rng_key(), 0.2, x) if training else x
        return hk.Linear(CLASSES)(hk.LayerNorm(-1, True, True)(x))

    network = hk.transform_with_state(net)
    optimizer = optax.chain(optax.add_decayed_weights(1e-3), optax.trace(0.9, nesterov=True), optax.scale(-0.05))

    def step(state: Any, batch: Any) -> Any:
        params, average, kept, opt_state, key = state
        key, own = jax.random.split(key)

        def loss_fn(params: Any) -> Any:
            logits, after = network.apply(params, kept, own, batch["image"], True)
            hits = jnp.sum(logits.argmax(-1) == batch["label"])
            return cross_entropy(logits, batch["label"]), (after, hits)

        (loss, (kept, hits)), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        average = optax.incremental_update(params, average, 0.1)
        return (params, average, kept, opt_state, key), {"loss": loss, "hits": hits}

    params, kept = network.init(jax.random.key(0), pictures()["image"], True)
    state = (params, jax.tree.map(jnp.copy, params), kept, optimizer.init(params), jax.random.key(2))
    return Case(step=step, state=state, batch=pictures())


def rms(x: Any, scale: Any) -> Any:
    return x * scale * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def decoder_layer(p: Any, x: Any, mask: Any) -> Any:
    h = rms(x, p["n1"])
    q, k, v = (h @ p[name] for name in ("q", "k", "v"))
    q, k, v = (t.reshape(*t.shape[:2], 2, -1) for t in (q, k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
    scores = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    x = x + jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(x.shape) @ p["o"]
    h = rms(x, p["n2"])
    return x + (jax.nn.silu(h @ p["g"]) * (h @ p["u"])) @ p["d"]


def decoder_weights(layers: int | None, seed: int = 0) -> dict[str, Any]:
    lead = () if layers is None else (layers,)
    shapes = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "o": (WIDTH, WIDTH)}
    shapes |= {"g": (WIDTH, 2 * WIDTH), "u": (WIDTH, 2 * WIDTH), "d": (2 * WIDTH, WIDTH)}
    weights = {n: drawn(*lead, *s, seed=seed + i, scale=s[0] ** -0.5) for i, (n, s) in enumerate(shapes.items())}
    return weights | {"n1": jnp.ones((*lead, WIDTH)), "n2": jnp.ones((*lead, WIDTH))}


@case
def jax_small_gpt_with_tied_words_ignored_targets_and_decay_groups() -> Case:
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(
            optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 8),
            b2=0.95,
            eps=1e-3,
            mask=lambda tree: jax.tree.map(lambda p: p.ndim >= 2, tree),
        ),
    )

    def loss_fn(params: Any, batch: Any, key: Any) -> Any:
        ids = batch["ids"]
        x = params["wte"][ids] + params["wpe"][: ids.shape[1]]
        x = jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0.0)
        mask = jnp.tril(jnp.ones((ids.shape[1], ids.shape[1]), bool))
        for number, layer in enumerate(params["h"]):
            x = decoder_layer(layer, x, mask)
            drop = jax.random.fold_in(key, number)
            x = jnp.where(jax.random.bernoulli(drop, 0.9, x.shape), x / 0.9, 0.0)
        logits = rms(x, params["ln_f"]) @ params["wte"].T
        keep = batch["next"] != 0
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(keep, batch["next"], 0))
        return jnp.where(keep, losses, 0.0).sum() / jnp.maximum(keep.sum(), 1)

    def step(state: Any, batch: Any) -> Any:
        params, opt_state, key, number = state
        own = jax.random.fold_in(key, number)
        loss, grads = jax.value_and_grad(loss_fn)(params, batch, own)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state, key, number + 1), (loss, optax.global_norm(grads))

    params = {
        "wte": drawn(WORDS, WIDTH, scale=0.2),
        "wpe": drawn(LENGTH, WIDTH, seed=1, scale=0.2),
        "h": [decoder_weights(None, seed=9 * i) for i in range(2)],
        "ln_f": jnp.ones(WIDTH),
    }
    state = (params, optimizer.init(params), jax.random.key(3), jnp.zeros((), jnp.int32))
    return Case(step=step, state=state, batch=sentences())


@case
def jax_scanned_remat_decoder_with_packed_segments_z_loss_and_own_accumulation() -> Case:
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2, eps=1e-3))

    def loss_fn(params: Any, batch: Any) -> Any:
        x = params["words"][batch["ids"]]
        same = batch["segments"][:, None, :, None] == batch["segments"][:, None, None, :]
        mask = same & jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable

        @partial(jax.checkpoint, policy=policy, prevent_cse=False)
        def block(x: Any, layer: Any) -> Any:
            return decoder_layer(layer, x, mask), None

        x, _ = lax.scan(block, x, params["layers"])
        logits = rms(x, params["norm"]) @ params["head"]
        total = jax.nn.logsumexp(logits, axis=-1)
        losses = total - jnp.take_along_axis(logits, batch["next"][..., None], axis=-1)[..., 0]
        losses = losses + 1e-2 * total**2
        weights = (batch["segments"] != 0).astype(losses.dtype)
        return jnp.sum(losses * weights), {"weights": weights.sum(), "z": jnp.sum(total**2 * weights)}

    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        parts = jax.tree.map(lambda x: x.reshape(2, -1, *x.shape[1:]), batch)

        def add(carried: Any, part: Any) -> Any:
            grads, loss, weights = carried
            (value, aux), new = jax.value_and_grad(loss_fn, has_aux=True)(params, part)
            return (jax.tree.map(jnp.add, grads, new), loss + value, weights + aux["weights"]), aux["z"]

        zero = (jax.tree.map(jnp.zeros_like, params), 0.0, 0.0)
        (grads, loss, weights), z = lax.scan(add, zero, parts)
        grads = jax.tree.map(lambda g: g / weights, grads)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), (loss / weights, z.sum())

    params = {
        "words": drawn(WORDS, WIDTH, scale=0.3),
        "layers": decoder_weights(3),
        "norm": jnp.ones(WIDTH),
        "head": drawn(WIDTH, WORDS, seed=5, scale=0.3),
    }
    batch = sentences() | {"segments": jnp.sort(whole(3, SAMPLES, LENGTH, seed=7), axis=1)}
    return Case(step=step, state=(params, optimizer.init(params)), batch=batch)


@case
def jax_denoiser_with_guidance_averages_and_weights_of_signal_to_noise() -> Case:
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), adam())
    betas = jnp.linspace(1e-3, 0.2, 10)
    signal = jnp.cumprod(1 - betas)

    def step(state: Any, batch: Any) -> Any:
        params, average, opt_state, key = state
        key, t_key, noise_key, drop_key = jax.random.split(key, 4)
        x, y = batch["x"], batch["y"]
        t = jax.random.randint(t_key, (x.shape[0],), 0, 10)
        noise = jax.random.normal(noise_key, x.shape)
        a = signal[t][:, None]
        noisy = jnp.sqrt(a) * x + jnp.sqrt(1 - a) * noise
        label = jnp.where(jax.random.uniform(drop_key, y.shape) < 0.2, CLASSES, y)

        def loss_fn(params: Any) -> Any:
            given = jnp.concatenate([noisy, params["label"][label], jnp.sin(t[:, None] * jnp.arange(1, 3))], -1)
            guess = forward(params["net"], given)
            ratio = a[:, 0] / (1 - a[:, 0])
            losses = jnp.minimum(ratio, 5.0) / (ratio + 1) * ((guess - noise) ** 2).mean(-1)
            by_time = jax.ops.segment_sum(losses, t, num_segments=10)
            return losses.mean(), by_time

        (loss, by_time), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        average = optax.incremental_update(params, average, 0.1)
        return (params, average, opt_state, key), (loss, by_time)

    params = {"net": mlp(FEATURES + 4 + 2, WIDTH, WIDTH, FEATURES), "label": drawn(CLASSES + 1, 4, seed=3)}
    state = (params, jax.tree.map(jnp.copy, params), optimizer.init(params), jax.random.key(4))
    return Case(step=step, state=state, batch=classified())


@case
def jax_critics_stepped_twice_with_hinges_before_the_generator() -> Case:
    g_opt, d_opt = optax.adam(1e-2, b1=0.0, eps=1e-3), optax.adam(2e-2, b1=0.0, eps=1e-3)

    def step(state: Any, batch: Any) -> Any:
        g, d, g_state, d_state, key = state
        real = batch["x"]

        def critic(carried: Any, key: Any) -> Any:
            d, d_state = carried
            fake = forward(g, jax.random.normal(key, (real.shape[0], 3)))

            def loss(d: Any) -> Any:
                there, made = forward(d, real), forward(d, fake)
                return jax.nn.relu(1 - there).mean() + jax.nn.relu(1 + made).mean()

            value, grads = jax.value_and_grad(loss)(d)
            updates, d_state = d_opt.update(grads, d_state)
            return (optax.apply_updates(d, updates), d_state), value

        key, *keys, last = jax.random.split(key, 4)
        (d, d_state), d_losses = lax.scan(critic, (d, d_state), jnp.stack(keys))
        z = jax.random.normal(last, (real.shape[0], 3))
        g_loss, grads = jax.value_and_grad(lambda g: -forward(d, forward(g, z)).mean())(g)
        updates, g_state = g_opt.update(grads, g_state)
        return (optax.apply_updates(g, updates), d, g_state, d_state, key), (g_loss, d_losses)

    g, d = mlp(3, WIDTH, FEATURES), mlp(FEATURES, WIDTH, 1, seed=5)
    return Case(step=step, state=(g, d, g_opt.init(g), d_opt.init(d), jax.random.key(5)), batch=classified())


@case
def jax_policy_with_advantages_epochs_and_drawn_minibatches() -> Case:
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(optax.linear_schedule(1e-2, 0.0, 40), eps=1e-3))
    steps, actors = 4, 8

    def step(state: Any, batch: Any) -> Any:
        params, opt_state, key = state

        def back(carried: Any, now: Any) -> Any:
            gae, after = carried
            reward, value, done = now
            delta = reward + 0.99 * after * (1 - done) - value
            gae = delta + 0.99 * 0.95 * (1 - done) * gae
            return (gae, value), gae

        rolled = tuple(jnp.moveaxis(batch[name], 0, 1) for name in ("reward", "value", "done"))
        zero = jnp.zeros((actors,), batch["value"].dtype)
        _, advantages = lax.scan(back, (zero, batch["last"]), rolled, reverse=True, unroll=2)
        advantages = jnp.moveaxis(advantages, 0, 1)
        flat = {name: batch[name] for name in ("obs", "action", "logp", "value")}
        flat |= {"advantage": advantages, "target": advantages + batch["value"]}
        flat = jax.tree.map(lambda x: x.reshape(actors * steps, *x.shape[2:]), flat)

        def loss_fn(params: Any, part: Any) -> Any:
            logits, value = forward(params["pi"], part["obs"]), forward(params["v"], part["obs"])[:, 0]
            logp = jnp.take_along_axis(jax.nn.log_softmax(logits), part["action"][:, None], 1)[:, 0]
            ratio = jnp.exp(logp - part["logp"])
            adv = (part["advantage"] - part["advantage"].mean()) / (part["advantage"].std() + 1e-8)
            clipped = part["value"] + (value - part["value"]).clip(-0.2, 0.2)
            v_loss = 0.5 * jnp.maximum((value - part["target"]) ** 2, (clipped - part["target"]) ** 2).mean()
            pi_loss = -jnp.minimum(ratio * adv, ratio.clip(0.8, 1.2) * adv).mean()
            entropy = -(jax.nn.softmax(logits) * jax.nn.log_softmax(logits)).sum(-1).mean()
            return pi_loss + 0.5 * v_loss - 0.01 * entropy, (pi_loss, v_loss, (abs(ratio - 1) > 0.2).mean())

        def minibatch(carried: Any, part: Any) -> Any:
            params, opt_state = carried
            found, grads = jax.value_and_grad(loss_fn, has_aux=True)(params, part)
            updates, opt_state = optimizer.update(grads, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), found

        def epoch(carried: Any, key: Any) -> Any:
            order = jax.random.permutation(key, actors * steps)
            parts = jax.tree.map(lambda x: x[order].reshape(4, -1, *x.shape[1:]), flat)
            return lax.scan(minibatch, carried, parts)

        key, own = jax.random.split(key)
        (params, opt_state), found = lax.scan(epoch, (params, opt_state), jax.random.split(own, 2))
        return (params, opt_state, key), jax.tree.map(jnp.mean, found)

    params = {"pi": mlp(FEATURES, WIDTH, CLASSES), "v": mlp(FEATURES, WIDTH, 1, seed=4)}
    batch = {
        "obs": drawn(actors, steps, FEATURES),
        "action": whole(CLASSES, actors, steps),
        "logp": -jnp.abs(drawn(actors, steps, seed=1)),
        "value": drawn(actors, steps, seed=2),
        "reward": drawn(actors, steps, seed=3),
        "done": whole(2, actors, steps, seed=4).astype(jnp.float32),
        "last": drawn(actors, seed=5),
    }
    return Case(step=step, state=(params, optimizer.init(params), jax.random.key(6)), batch=batch)


@case
def jax_private_gradients_in_chunks_with_noise() -> Case:
    def step(state: Any, batch: Any) -> Any:
        params, key = state
        key, own = jax.random.split(key)

        def clipped(sample: Any) -> Any:
            loss, grads = jax.value_and_grad(lambda p: cross_entropy(forward(p, sample["x"]), sample["y"]))(params)
            norm = optax.global_norm(grads)
            return jax.tree.map(lambda g: g / jnp.maximum(1.0, norm / 0.5), grads), (loss, norm > 0.5)

        grads, (losses, cut) = lax.map(clipped, batch, batch_size=4)
        grads = jax.tree.map(lambda g: g.sum(0), grads)
        leaves, tree = jax.tree.flatten(grads)
        keys = jax.random.split(own, len(leaves))
        noisy = [g + 0.1 * jax.random.normal(k, g.shape, g.dtype) for g, k in zip(leaves, keys, strict=True)]
        grads = jax.tree.unflatten(tree, [g / SAMPLES for g in noisy])
        return (sgd(params, grads), key), (losses.mean(), cut.mean())

    return Case(step=step, state=(mlp(FEATURES, WIDTH, CLASSES), jax.random.key(7)), batch=classified())


@case
def equinox_two_recurrent_layers_over_truncated_time_with_carried_state() -> Case:
    class Model(eqx.Module):
        words: eqx.nn.Embedding
        cells: list[Any]
        drop: eqx.nn.Dropout
        head: eqx.nn.Linear

        def __init__(self, key: Any) -> None:
            a, b, c, d = jax.random.split(key, 4)
            self.words = eqx.nn.Embedding(WORDS, WIDTH, key=a)
            self.cells = [eqx.nn.LSTMCell(WIDTH, WIDTH, key=k) for k in (b, c)]
            self.drop, self.head = eqx.nn.Dropout(0.2), eqx.nn.Linear(WIDTH, WORDS, key=d)

        def __call__(self, ids: Any, carried: Any, key: Any) -> Any:
            def at(carried: Any, now: Any) -> Any:
                word, key = now
                x, after = self.words(word), []
                for cell, held in zip(self.cells, carried, strict=True):
                    h, c = cell(x, held)
                    after.append((h, c))
                    x = self.drop(h, key=key)
                return after, self.head(x)

            return lax.scan(at, carried, (ids, jax.random.split(key, len(ids))))

    optimizer = optax.chain(optax.clip_by_global_norm(0.25), optax.sgd(0.5))

    def step(state: Any, batch: Any) -> Any:
        model, opt_state, key = state
        key, own = jax.random.split(key)

        @partial(eqx.filter_value_and_grad, has_aux=True)
        def loss_fn(model: Any) -> Any:
            keys = jax.random.split(own, len(batch["ids"]))
            after, logits = jax.vmap(model)(batch["ids"], batch["held"], keys)
            return cross_entropy(logits, batch["next"]), lax.stop_gradient(after)

        (loss, after), grads = loss_fn(model)
        updates, opt_state = optimizer.update(grads, opt_state)
        return (eqx.apply_updates(model, updates), opt_state, key), (jnp.exp(loss), after)

    model = Model(jax.random.key(0))
    state = (model, optimizer.init(eqx.filter(model, eqx.is_inexact_array)), jax.random.key(8))
    held = [(drawn(SAMPLES, WIDTH, seed=s), drawn(SAMPLES, WIDTH, seed=s + 1)) for s in (3, 5)]
    return Case(step=step, state=state, batch=sentences() | {"held": held}, jit=eqx.filter_jit)


@case
def jax_translator_with_attention_over_padded_sources_and_smoothed_targets() -> Case:
    optimizer = optax.adafactor(1e-2, min_dim_size_to_factor=4)

    def loss_fn(params: Any, batch: Any) -> Any:
        there = batch["ids"] > 0
        source = params["words"][batch["ids"]]

        def read(h: Any, now: Any) -> Any:
            x, on = now
            new = jnp.tanh(x @ params["in"] + h @ params["hh"])
            h = jnp.where(on[:, None], new, h)
            return h, h

        last, memory = lax.scan(read, jnp.zeros_like(source[:, 0]), (source.swapaxes(0, 1), there.T))
        memory = memory.swapaxes(0, 1)

        def write(h: Any, word: Any) -> Any:
            scores = jnp.tanh(memory @ params["m"] + (h @ params["s"])[:, None]) @ params["a"]
            seen = jax.nn.softmax(jnp.where(there, scores, -1e9), axis=-1)
            context = jnp.einsum("bt,btd->bd", seen, memory)
            h = jnp.tanh(params["words"][word] @ params["out_in"] + h @ params["out_hh"] + context)
            return h, h @ params["head"]

        targets = batch["next"]
        shifted = jnp.pad(targets, ((0, 0), (1, 0)))[:, :-1]
        _, logits = lax.scan(write, last, shifted.T)
        logits = logits.swapaxes(0, 1)
        labels = optax.smooth_labels(jax.nn.one_hot(targets, WORDS), 0.1)
        mask = (targets > 0).astype(logits.dtype)
        losses = optax.softmax_cross_entropy(logits, labels) * mask
        right = ((logits.argmax(-1) == targets) * mask).sum()
        return losses.sum() / mask.sum(), (right / mask.sum(), mask.sum())

    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        found, grads = jax.value_and_grad(loss_fn, has_aux=True)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), found

    names = ("in", "hh", "m", "s", "out_in", "out_hh")
    params = {name: drawn(WIDTH, WIDTH, seed=i, scale=0.3) for i, name in enumerate(names)}
    params |= {"words": drawn(WORDS, WIDTH, seed=7), "a": drawn(WIDTH, seed=8), "head": drawn(WIDTH, WORDS, seed=9)}
    return Case(step=step, state=(params, optimizer.init(params)), batch=sentences())


@case
def jax_pictures_and_texts_contrasted_with_clamped_scale_and_ranks() -> Case:
    optimizer = optax.adamw(1e-2, eps=1e-3)

    def loss_fn(params: Any, batch: Any) -> Any:
        pictures_ = forward(params["picture"], batch["image"].reshape(len(batch["image"]), -1))
        mask = (batch["ids"] > 0)[..., None]
        texts = (params["words"][batch["ids"]] * mask).sum(1) / jnp.maximum(mask.sum(1), 1)
        texts = forward(params["text"], texts)
        one, other = (z / jnp.linalg.norm(z, axis=-1, keepdims=True) for z in (pictures_, texts))
        logits = jnp.exp(jnp.minimum(params["scale"], jnp.log(100.0))) * one @ other.T
        own = jnp.arange(len(logits))
        loss = (cross_entropy(logits, own) + cross_entropy(logits.T, own)) / 2
        rank = (logits > jnp.diagonal(logits)[:, None] + 1e-6).sum(-1)
        return loss, {"first": (rank == 0).mean(), "median": jnp.median(rank), "scale": params["scale"]}

    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        (loss, metrics), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        params["scale"] = jnp.clip(params["scale"], 0.0, 4.6)
        return (params, opt_state), (loss, metrics)

    params = {
        "picture": mlp(72, WIDTH, WIDTH),
        "text": mlp(WIDTH, WIDTH, seed=3),
        "words": drawn(WORDS, WIDTH, seed=4),
        "scale": jnp.asarray(2.0),
    }
    batch = pictures() | {"ids": sentences()["ids"]}
    return Case(step=step, state=(params, optimizer.init(params)), batch=batch)


@case
def optax_adapters_trained_beside_frozen_weights_with_their_own_rates() -> Case:
    labels = {"base": "frozen", "a": "a", "b": "b"}
    optimizer = optax.multi_transform(
        {"frozen": optax.set_to_zero(), "a": adam(1e-2), "b": optax.chain(optax.clip(1.0), adam(16e-2))}, labels
    )

    def loss_fn(params: Any, batch: Any) -> Any:
        base = lax.stop_gradient(params["base"])
        x = base["words"][batch["ids"]]
        mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
        for number, layer in enumerate(base["h"]):
            a, b = params["a"][number], params["b"][number]
            own = layer | {name: layer[name] + 2.0 * a[name] @ b[name] for name in ("q", "v")}
            x = decoder_layer(own, x, mask)
        return cross_entropy(x @ base["words"].T, batch["next"])

    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    base = {"words": drawn(WORDS, WIDTH), "h": [decoder_weights(None, seed=9 * i) for i in range(2)]}
    a = [{name: drawn(WIDTH, 2, seed=i, scale=0.3) for name in "qv"} for i in range(2)]
    b = [{name: jnp.zeros((2, WIDTH)) for name in "qv"} for _ in range(2)]
    params = {"base": base, "a": a, "b": b}
    return Case(step=step, state=(params, optimizer.init(params)), batch=sentences())


@case
def nnx_student_of_hidden_layers_and_soft_answers() -> Case:
    class Net(nnx.Module):
        def __init__(self, width: int, rngs: nnx.Rngs) -> None:
            self.one = nnx.Linear(FEATURES, width, rngs=rngs)
            self.two = nnx.Linear(width, width, rngs=rngs)
            self.head = nnx.Linear(width, CLASSES, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            hidden = nnx.gelu(self.two(nnx.gelu(self.one(x))))
            return self.head(hidden), hidden

    class Student(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.net, self.bridge = Net(4, rngs), nnx.Linear(4, WIDTH, use_bias=False, rngs=rngs)

    def step(student: Any, optimizer: Any, teacher: Any, batch: Any) -> Any:
        soft, inner = teacher(batch["x"])

        def loss_fn(student: Any) -> Any:
            logits, hidden = student.net(batch["x"])
            hard = cross_entropy(logits, batch["y"])
            kl = optax.kl_divergence(jax.nn.log_softmax(logits / 3), jax.nn.softmax(soft / 3)).mean() * 9
            near = ((student.bridge(hidden) - lax.stop_gradient(inner)) ** 2).mean()
            return 0.5 * hard + 0.5 * kl + 0.1 * near, (hard, kl, near)

        found, grads = nnx.value_and_grad(loss_fn, has_aux=True)(student)
        optimizer.update(student, grads)
        return found

    student, teacher = Student(nnx.Rngs(0)), Net(WIDTH, nnx.Rngs(1))
    state = (student, nnx.Optimizer(student, adam(), wrt=nnx.Param), teacher)
    return Case(
        step=step,
        state=state,
        batch=classified(),
        after=in_place,
        jit=nnx.jit,
        call=lambda run, state, batch: run(*state, batch),
        options={"batch_argnums": 3},
    )


@case
def jax_two_of_four_experts_by_ragged_products_with_balance_and_z_loss() -> Case:
    optimizer, experts, top = adam(), 4, 2

    def loss_fn(params: Any, batch: Any) -> Any:
        x = params["words"][batch["ids"]]
        flat = x.reshape(-1, WIDTH)
        logits = flat @ params["router"]
        gates, chosen = lax.top_k(jax.nn.softmax(logits), top)
        gates = gates / gates.sum(-1, keepdims=True)
        order = jnp.argsort(chosen.reshape(-1))
        sizes = jnp.bincount(chosen.reshape(-1), length=experts)
        sent = flat[order // top]
        h = jax.nn.silu(lax.ragged_dot(sent, params["up"], sizes))
        out = lax.ragged_dot(h, params["down"], sizes)
        back = out[jnp.argsort(order)].reshape(-1, top, WIDTH)
        x = x + (back * gates[..., None]).sum(1).reshape(x.shape)
        balance = experts * (sizes / sizes.sum() * jax.nn.softmax(logits).mean(0)).sum()
        z = (jax.nn.logsumexp(logits, axis=-1) ** 2).mean()
        loss = cross_entropy(x @ params["head"], batch["next"])
        return loss + 0.02 * balance + 1e-3 * z, {"loss": loss, "sizes": sizes, "most": sizes.max()}

    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        found, grads = jax.value_and_grad(loss_fn, has_aux=True)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), found

    params = {
        "words": drawn(WORDS, WIDTH),
        "router": drawn(WIDTH, experts, seed=1),
        "up": drawn(experts, WIDTH, 2 * WIDTH, seed=2, scale=0.3),
        "down": drawn(experts, 2 * WIDTH, WIDTH, seed=3, scale=0.3),
        "head": drawn(WIDTH, WORDS, seed=4, scale=0.3),
    }
    return Case(step=step, state=(params, optimizer.init(params)), batch=sentences())


@case
def jax_evaluation_with_counts_confusion_and_areas_under_curves() -> Case:
    def step(params: Any, batch: Any) -> Any:
        logits = forward(params, batch["x"])
        y, keep = batch["y"], batch["weight"] > 0
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
        guess = logits.argmax(-1)
        confusion = jnp.zeros((CLASSES, CLASSES), jnp.int32).at[y, guess].add(keep)
        score, positive = jax.nn.softmax(logits)[:, 0], y == 0
        ranks = jnp.argsort(jnp.argsort(score)) + 1
        n = positive.sum()
        area = (jnp.where(positive, ranks, 0).sum() - n * (n + 1) / 2) / jnp.maximum(n * (len(y) - n), 1)
        return {
            "loss": (losses * batch["weight"]).sum(),
            "count": batch["weight"].sum(),
            "confusion": confusion,
            "area": area,
            "worst": losses.max(),
            "hist": jnp.histogram(losses, bins=5, range=(0.0, 5.0))[0],
            "top2": (lax.top_k(logits, 2)[1] == y[:, None]).any(-1).sum(),
        }

    batch = classified() | {"weight": jnp.asarray([1.0, 0.0, 0.5, 1.0] * (SAMPLES // 4))}
    return Case(step=step, state=mlp(FEATURES, WIDTH, CLASSES), batch=batch, after=lambda state, result: state)


@case
def jax_words_drawn_with_a_cache_until_all_have_ended() -> Case:
    length = LENGTH + 4

    def step(params: Any, batch: Any) -> Any:
        ids, count = batch["ids"], batch["ids"].shape[0]
        out = jnp.concatenate([ids, jnp.zeros((count, 4), ids.dtype)], axis=1)
        cache = {name: jnp.zeros((count, length, WIDTH), params["words"].dtype) for name in "kv"}

        def more(carried: Any) -> Any:
            _, _, at, done, _ = carried
            return (at < length - 1) & ~done.all()

        def one(carried: Any) -> Any:
            out, cache, at, done, key = carried
            x = params["words"][lax.dynamic_index_in_dim(out, at, 1, keepdims=False)]
            cache = {n: lax.dynamic_update_slice(cache[n], (x @ params[n])[:, None], (0, at, 0)) for n in "kv"}
            scores = jnp.einsum("bd,btd->bt", x @ params["q"], cache["k"]) / jnp.sqrt(WIDTH)
            scores = jax.nn.softmax(jnp.where(jnp.arange(length) <= at, scores, -1e9))
            logits = (x + jnp.einsum("bt,btd->bd", scores, cache["v"])) @ params["head"]
            key, own = jax.random.split(key)
            best, which = lax.top_k(logits, 3)
            drawn_ = jax.random.categorical(own, best / 0.8)
            word = jnp.take_along_axis(which, drawn_[:, None], 1)[:, 0].astype(out.dtype)
            word = jnp.where(at + 1 < batch["length"], out[:, at + 1], jnp.where(done, 0, word))
            done = done | ((word == 1) & (at + 1 >= batch["length"]))
            return out.at[:, at + 1].set(word), cache, at + 1, done, key

        start = (out, cache, 0, jnp.zeros(count, bool), jax.random.key(9))
        out, _, at, done, _ = lax.while_loop(more, one, start)
        return out, at, done

    params = {name: drawn(WIDTH, WIDTH, seed=i, scale=0.5) for i, name in enumerate("qkv")}
    params |= {"words": drawn(WORDS, WIDTH, seed=4), "head": drawn(WIDTH, WORDS, seed=5)}
    batch = {"ids": sentences()["ids"], "length": whole(LENGTH - 1, SAMPLES, seed=5) + 1}
    return Case(step=step, state=params, batch=batch, after=lambda state, result: state)


@case
def jax_labelled_and_unlabelled_samples_with_a_threshold_and_a_slow_teacher() -> Case:
    optimizer = optax.sgd(0.1, momentum=0.9)

    def step(state: Any, batch: Any) -> Any:
        params, slow, opt_state, key = state
        key, weak, strong = jax.random.split(key, 3)
        x, u = batch["x"], batch["u"]
        soft = jax.nn.softmax(forward(slow, u + 0.05 * jax.random.normal(weak, u.shape)))
        sure = (soft.max(-1) > 0.4).astype(x.dtype)

        def loss_fn(params: Any) -> Any:
            logits = forward(params, jnp.concatenate([x, u + 0.5 * jax.random.normal(strong, u.shape)]))
            known, guessed = logits[: len(x)], logits[len(x) :]
            unlabelled = optax.softmax_cross_entropy_with_integer_labels(guessed, soft.argmax(-1)) * sure
            return cross_entropy(known, batch["y"]) + unlabelled.mean(), sure.mean()

        found, grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        slow = optax.incremental_update(params, slow, 0.1)
        return (params, slow, opt_state, key), found

    params = mlp(FEATURES, WIDTH, CLASSES)
    state = (params, jax.tree.map(jnp.copy, params), optimizer.init(params), jax.random.key(10))
    return Case(step=step, state=state, batch=classified() | {"u": drawn(2 * SAMPLES, FEATURES, seed=6)})


@case
def nnx_pictures_cropped_and_flipped_under_keys_of_samples() -> Case:
    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.conv = nnx.Conv(2, 4, kernel_size=(3, 3), rngs=rngs)
            self.norm = nnx.GroupNorm(4, num_groups=2, rngs=rngs)
            self.head = nnx.Linear(4, CLASSES, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.head(nnx.relu(self.norm(self.conv(x))).mean((1, 2)))

    def changed(image: Any, key: Any) -> Any:
        flip, crop = jax.random.split(key)
        image = jnp.where(jax.random.bernoulli(flip), image[:, ::-1], image)
        padded = jnp.pad(image, ((1, 1), (1, 1), (0, 0)), mode="reflect")
        at = jax.random.randint(crop, (2,), 0, 3)
        return lax.dynamic_slice(padded, (at[0], at[1], 0), image.shape)

    def step(model: Any, optimizer: Any, rngs: Any, batch: Any) -> Any:
        keys = jax.random.split(rngs.augment(), len(batch["image"]))
        images = jax.vmap(changed)(batch["image"], keys)
        labels = jax.nn.one_hot(batch["label"], CLASSES)
        share = jax.random.beta(rngs.mix(), 0.4, 0.4)
        images = share * images + (1 - share) * images[::-1]
        labels = share * labels + (1 - share) * labels[::-1]

        def loss_fn(model: Any) -> Any:
            return optax.softmax_cross_entropy(model(images), labels).mean()

        loss, grads = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return loss

    model = Net(nnx.Rngs(0))
    state = (model, nnx.Optimizer(model, adam(), wrt=nnx.Param), nnx.Rngs(augment=1, mix=2))
    return Case(
        step=step,
        state=state,
        batch=pictures(),
        after=in_place,
        jit=nnx.jit,
        call=lambda run, state, batch: run(*state, batch),
        options={"batch_argnums": 3},
    )


@case
def jax_segmented_pictures_with_dice_of_classes_and_hard_pixels() -> Case:
    optimizer = optax.lamb(1e-2, eps=1e-3)

    def loss_fn(params: Any, batch: Any) -> Any:
        x = batch["image"]
        for kernel in params["kernels"]:
            x = jax.nn.relu(
                lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            )
        logits = x @ params["head"]
        truth = jax.nn.one_hot(batch["mask"], CLASSES)
        soft = jax.nn.softmax(logits)
        both, sums = (soft * truth).sum((0, 1, 2)), (soft + truth).sum((0, 1, 2))
        dice = 1 - (2 * both / (sums + 1e-6)).mean()
        losses = optax.softmax_cross_entropy(logits, truth).reshape(len(x), -1)
        hard = lax.top_k(losses, 9)[0].mean()
        right = logits.argmax(-1) == batch["mask"]
        union = jnp.stack([((logits.argmax(-1) == c) | (batch["mask"] == c)).sum() for c in range(CLASSES)])
        met = jnp.stack([(right & (batch["mask"] == c)).sum() for c in range(CLASSES)])
        return hard + dice, (met / jnp.maximum(union, 1)).mean()

    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        found, grads = jax.value_and_grad(loss_fn, has_aux=True)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), found

    params = {
        "kernels": [drawn(3, 3, 2, 4, scale=0.3), drawn(3, 3, 4, 4, seed=1, scale=0.3)],
        "head": drawn(4, CLASSES, seed=2),
    }
    batch = {"image": pictures()["image"], "mask": whole(CLASSES, SAMPLES, 6, 6, seed=3)}
    return Case(step=step, state=(params, optimizer.init(params)), batch=batch)


class Carried(NamedTuple):
    """What a step with time in front carries."""

    params: Any
    opt_state: Any
    running: Any


@case
def jax_pictures_contrasted_through_batch_norm_under_lars() -> Case:
    optimizer = optax.lars(0.1, weight_decay=1e-4, momentum=0.9)

    def norm(x: Any, p: Any) -> Any:
        mean, var = x.mean(0), x.var(0)
        return (x - mean) * lax.rsqrt(var + 1e-5) * p["scale"] + p["bias"], (mean, var)

    def loss_fn(params: Any, views: Any) -> Any:
        h, (mean, var) = norm(jnp.concatenate(views) @ params["one"], params["norm"])
        z = jax.nn.relu(h) @ params["two"]
        z = z / jnp.linalg.norm(z, axis=-1, keepdims=True)
        count = len(views[0])
        sims = z @ z.T / 0.2 - 1e9 * jnp.eye(2 * count)
        own = jnp.concatenate([jnp.arange(count) + count, jnp.arange(count)])
        return cross_entropy(sims, own), {"mean": mean, "var": var * 2 * count / (2 * count - 1)}

    def step(state: Carried, batch: Any) -> Any:
        views = (batch["x"], batch["x"] * batch["scale"])
        (loss, seen), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params, views)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        running = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, state.running, seen)
        return Carried(optax.apply_updates(state.params, updates), opt_state, running), loss

    params = {
        "one": drawn(FEATURES, WIDTH, scale=0.4),
        "norm": {"scale": jnp.ones(WIDTH), "bias": jnp.zeros(WIDTH)},
        "two": drawn(WIDTH, WIDTH, seed=1, scale=0.4),
    }
    running = {"mean": jnp.zeros(WIDTH), "var": jnp.ones(WIDTH)}
    batch = {"x": drawn(SAMPLES, FEATURES, seed=1), "scale": 1 + 0.2 * drawn(SAMPLES, FEATURES, seed=2)}
    return Case(step=step, state=Carried(params, optimizer.init(params), running), batch=batch)


@case
def jax_advantages_with_time_in_front_and_a_replayed_carry() -> Case:
    optimizer = optax.rmsprop(1e-2, decay=0.99, eps=1e-1)

    def loss_fn(params: Any, batch: Any) -> Any:
        def at(h: Any, now: Any) -> Any:
            obs, first = now
            h = jnp.where(first[:, None], 0.0, h)
            h = jnp.tanh(obs @ params["in"] + h @ params["hh"])
            return h, h

        last, hs = lax.scan(at, batch["carry"], (batch["obs"].swapaxes(0, 1), batch["first"].T))
        logits, values = hs @ params["pi"], (hs @ params["v"])[..., 0]
        logits, values = logits.swapaxes(0, 1), values.swapaxes(0, 1)
        errors = lax.stop_gradient(batch["return"]) - values
        logp = jax.nn.log_softmax(logits)
        chosen = jnp.take_along_axis(logp, batch["action"][..., None], -1)[..., 0]
        loss = -(chosen * lax.stop_gradient(errors)).mean() + 0.5 * jnp.square(errors).mean()
        explained = 1 - jnp.var(errors) / jnp.var(batch["return"])
        return loss, (last, explained)

    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        (loss, (last, explained)), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), (loss, last, explained)

    params = {
        "in": drawn(FEATURES, WIDTH, scale=0.4),
        "hh": drawn(WIDTH, WIDTH, seed=1, scale=0.3),
        "pi": drawn(WIDTH, CLASSES, seed=2),
        "v": drawn(WIDTH, 1, seed=3),
    }
    batch = {
        "obs": drawn(SAMPLES, LENGTH, FEATURES),
        "first": whole(5, SAMPLES, LENGTH, seed=4) == 0,
        "action": whole(CLASSES, SAMPLES, LENGTH, seed=5),
        "return": drawn(SAMPLES, LENGTH, seed=6),
        "carry": drawn(SAMPLES, WIDTH, seed=7),
    }
    return Case(step=step, state=(params, optimizer.init(params)), batch=batch)
