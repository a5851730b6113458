"""Steps as training code of late 2026 has them: routed decoders, preferences, groups of answers, heads in chunks."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from tests.corpus.case import (
    CLASSES,
    FEATURES,
    WIDTH,
    WORDS,
    Case,
    case,
    cross_entropy,
    drawn,
    forward,
    measured,
    mlp,
    pictures,
    sentences,
    whole,
)
from tests.corpus.nnx_steps import of_objects

DIM = 8


def adamw() -> Any:
    return optax.adamw(1e-2, eps=1e-3)


def optimized(model: Any, transform: Any) -> Any:
    return nnx.Optimizer(model, transform, wrt=nnx.Param)


class Attention(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, heads: int = 2) -> None:
        self.heads = heads
        self.qkv = nnx.Linear(DIM, 3 * DIM, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(DIM, DIM, use_bias=False, rngs=rngs)
        self.norm_q, self.norm_k = nnx.RMSNorm(DIM // heads, rngs=rngs), nnx.RMSNorm(DIM // heads, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        q, k, v = jnp.split(self.qkv(x).reshape(*x.shape[:2], self.heads, -1), 3, -1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", self.norm_q(q), self.norm_k(k)) / 2
        causal = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), -1)
        return self.out(jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape))


class Experts(nnx.Module):
    """Balanced by a bias that is no parameter."""

    def __init__(self, rngs: nnx.Rngs, experts: int = 4, chosen: int = 2) -> None:
        draw = nnx.initializers.lecun_normal()
        self.experts, self.chosen = experts, chosen
        self.router = nnx.Linear(DIM, experts, use_bias=False, rngs=rngs)
        self.up = nnx.Param(draw(rngs.params(), (experts, DIM, 16)))
        self.down = nnx.Param(draw(rngs.params(), (experts, 16, DIM)))
        self.bias = nnx.BatchStat(jnp.zeros(experts))

    def __call__(self, x: Any) -> Any:
        scores = jax.nn.sigmoid(self.router(x))
        _, picked = jax.lax.top_k(scores + self.bias[...], self.chosen)
        weights = jnp.take_along_axis(scores, picked, -1)
        weights = weights / weights.sum(-1, keepdims=True)
        gates = (jax.nn.one_hot(picked, self.experts) * weights[..., None]).sum(-2)
        load = (gates > 0).sum((0, 1))
        self.bias[...] = self.bias[...] + 1e-3 * jnp.sign(gates.size / self.experts / 2 - load)
        hidden = nnx.silu(jnp.einsum("bld,ndf->blnf", x, self.up[...]))
        return jnp.einsum("blnd,bln->bld", jnp.einsum("blnf,nfd->blnd", hidden, self.down[...]), gates)


class Layer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, routed: bool) -> None:
        self.attention = Attention(rngs)
        self.dense = Experts(rngs) if routed else nnx.Linear(DIM, DIM, rngs=rngs)
        self.norm_1, self.norm_2 = nnx.RMSNorm(DIM, rngs=rngs), nnx.RMSNorm(DIM, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = x + self.attention(self.norm_1(x))
        return x + self.dense(self.norm_2(x))


class Decoder(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, routed: bool = False, layers: int = 2) -> None:
        self.embed = nnx.Embed(WORDS, DIM, rngs=rngs)
        self.layers = nnx.List([Layer(rngs, routed) for _ in range(layers)])
        self.norm = nnx.RMSNorm(DIM, rngs=rngs)

    def __call__(self, ids: Any) -> Any:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.embed.attend(self.norm(x))


def log_likelihood(model: Any, ids: Any) -> Any:
    """Of each token but the first."""
    guesses = jax.nn.log_softmax(model(ids)[:, :-1])
    return jnp.take_along_axis(guesses, ids[:, 1:, None], -1)[..., 0]


@case
def nnx_balanced_experts_under_muon_with_z_loss() -> Case:
    model = Decoder(nnx.Rngs(0), routed=True)

    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        def loss_fn(model: Any) -> Any:
            logits = model(batch["ids"])
            return cross_entropy(logits, batch["next"]) + 1e-4 * (jax.nn.logsumexp(logits, -1) ** 2).mean()

        loss, grads = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return {"loss": loss, "norm": optax.global_norm(grads)}

    state = (model, optimized(model, optax.contrib.muon(1e-2)))
    return of_objects(step, state, sentences(), narrow=True)


@case
def nnx_lion_over_two_calls_with_average_weights() -> Case:
    model = Decoder(nnx.Rngs(0))

    def step(model: Any, optimizer: Any, average: Any, batch: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda model: cross_entropy(model(batch["ids"]), batch["next"]))(model)
        optimizer.update(model, grads)
        old, new = nnx.state(average, nnx.Param), nnx.state(model, nnx.Param)
        nnx.update(average, jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, old, new))
        return loss

    transform = optax.MultiSteps(optax.chain(optax.clip_by_global_norm(1.0), optax.lion(1e-2)), every_k_schedule=2)
    state = (model, optimized(model, transform), nnx.clone(model))
    return of_objects(step, state, sentences(), narrow=True)


@case
def nnx_preferences_against_a_reference_with_masks() -> Case:
    model = Decoder(nnx.Rngs(0))
    batch = {
        "chosen": whole(WORDS, 16, 6, seed=1),
        "rejected": whole(WORDS, 16, 6, seed=2),
        "mask": whole(2, 16, 5, seed=3),
        "other_mask": whole(2, 16, 5, seed=4),
    }

    def step(model: Any, optimizer: Any, reference: Any, batch: Any) -> Any:
        def pair(model: Any) -> Any:
            chosen = (log_likelihood(model, batch["chosen"]) * batch["mask"]).sum(-1)
            return chosen, (log_likelihood(model, batch["rejected"]) * batch["other_mask"]).sum(-1)

        def loss_fn(model: Any) -> Any:
            (chosen, rejected), (old_chosen, old_rejected) = pair(model), pair(reference)
            margin = 0.1 * ((chosen - old_chosen) - (rejected - old_rejected))
            beside = {"accuracy": (margin > 0).mean(), "margin": margin.mean(), "chosen": chosen.mean()}
            return -jax.nn.log_sigmoid(margin).mean(), beside

        (loss, beside), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model)
        optimizer.update(model, grads)
        return loss, beside

    state = (model, optimized(model, adamw()), Decoder(nnx.Rngs(1)))
    return of_objects(step, state, batch, narrow=True)


@case
def nnx_groups_of_answers_with_advantages_in_the_step() -> Case:
    model = Decoder(nnx.Rngs(0))
    batch = {
        "ids": whole(WORDS, 4, 4, 6, seed=1),
        "mask": whole(2, 4, 4, 5, seed=3),
        "reward": drawn(4, 4, seed=5),
        "old": drawn(4, 4, 5, seed=6, scale=0.1) - 2.5,
    }

    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        reward = batch["reward"]
        advantage = (reward - reward.mean(1, keepdims=True)) / (reward.std(1, keepdims=True) + 1e-4)

        def loss_fn(model: Any) -> Any:
            new = log_likelihood(model, batch["ids"].reshape(-1, 6)).reshape(4, 4, 5)
            ratio, each = jnp.exp(new - batch["old"]), advantage[..., None]
            gain = jnp.minimum(ratio * each, jnp.clip(ratio, 0.8, 1.28) * each)
            away = jnp.exp(batch["old"] - new) - (batch["old"] - new) - 1
            return -((gain - 0.04 * away) * batch["mask"]).sum() / jnp.maximum(batch["mask"].sum(), 1)

        loss, grads = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return loss

    return of_objects(step, (model, optimized(model, adamw())), batch, narrow=True)


class Denoiser(eqx.Module):
    first: eqx.nn.Conv2d
    down: eqx.nn.Conv2d
    up: eqx.nn.ConvTranspose2d
    norm: eqx.nn.GroupNorm
    time: eqx.nn.MLP

    def __init__(self, key: Any) -> None:
        keys = jax.random.split(key, 4)
        self.first = eqx.nn.Conv2d(2, 4, 3, padding=1, key=keys[0])
        self.down = eqx.nn.Conv2d(4, 4, 3, 2, padding=1, key=keys[1])
        self.up = eqx.nn.ConvTranspose2d(4, 2, 4, 2, padding=1, key=keys[2])
        self.norm = eqx.nn.GroupNorm(2, 4)
        self.time = eqx.nn.MLP(1, 4, 8, 1, key=keys[3])

    def __call__(self, x: Any, t: Any) -> Any:
        hidden = jax.nn.silu(self.norm(self.first(x) + self.time(t[None])[:, None, None]))
        return self.up(jax.nn.silu(self.down(hidden)))


@case
def equinox_flow_at_times_drawn_in_the_step() -> Case:
    model, kept = Denoiser(jax.random.key(0)), eqx.is_inexact_array
    transform = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2, eps=1e-3))

    def step(state: Any, batch: Any) -> Any:
        model, average, opt, key = state
        key, at, of_noise = jax.random.split(key, 3)
        x = jnp.moveaxis(batch["image"], -1, 1)
        t = jax.nn.sigmoid(jax.random.normal(at, (x.shape[0],))).astype(x.dtype)
        noise, each = jax.random.normal(of_noise, x.shape, x.dtype), t[:, None, None, None]

        @eqx.filter_value_and_grad
        def loss_fn(model: Any) -> Any:
            return ((jax.vmap(model)((1 - each) * x + each * noise, t) - (noise - x)) ** 2).mean()

        loss, grads = loss_fn(model)
        updates, opt = transform.update(grads, opt, eqx.filter(model, kept))
        model = eqx.apply_updates(model, updates)
        old, rest = eqx.partition(average, kept)
        averaged = jax.tree.map(lambda old, new: 0.99 * old + 0.01 * new, old, eqx.filter(model, kept))
        return (model, eqx.combine(averaged, rest), opt, key), loss

    state = (model, model, transform.init(eqx.filter(model, kept)), jax.random.key(5))
    return Case(step=step, state=state, batch=pictures(), jit=eqx.filter_jit)


@case
def equinox_autoencoder_whose_penalty_grows_with_a_count() -> Case:
    one, other = jax.random.split(jax.random.key(0))
    model = (eqx.nn.MLP(FEATURES, 8, 16, 2, key=one), eqx.nn.MLP(4, FEATURES, 16, 2, key=other))
    transform = optax.adabelief(1e-2, eps=1e-3)

    def step(state: Any, batch: Any) -> Any:
        model, opt, count = state
        key, beta = jax.random.fold_in(jax.random.key(0), count), jnp.minimum(1.0, count / 4)

        @eqx.filter_value_and_grad(has_aux=True)
        def loss_fn(model: Any) -> Any:
            mean, log_var = jnp.split(jax.vmap(model[0])(batch["x"]), 2, -1)
            code = mean + jnp.exp(0.5 * log_var) * jax.random.normal(key, mean.shape, mean.dtype)
            error = ((jax.vmap(model[1])(code) - batch["x"]) ** 2).sum(-1)
            away = 0.5 * (mean**2 + jnp.exp(log_var) - log_var - 1).sum(-1)
            return (error + beta * away).mean(), (error.mean(), away.mean())

        (loss, beside), grads = loss_fn(model)
        updates, opt = transform.update(grads, opt, eqx.filter(model, eqx.is_array))
        return (eqx.apply_updates(model, updates), opt, count + 1), (loss, beside)

    state = (model, transform.init(eqx.filter(model, eqx.is_array)), jnp.zeros((), jnp.int32))
    return Case(step=step, state=state, batch=measured(), jit=eqx.filter_jit)


@case
def equinox_recurrent_sentences_of_several_lengths() -> Case:
    keys = jax.random.split(jax.random.key(0), 3)
    model = (
        eqx.nn.LSTMCell(DIM, DIM, key=keys[0]),
        eqx.nn.Embedding(WORDS, DIM, key=keys[1]),
        eqx.nn.Linear(DIM, WORDS, key=keys[2]),
    )
    transform = optax.rmsprop(1e-2, eps=1e-3)

    def step(state: Any, batch: Any) -> Any:
        model, opt = state

        @eqx.filter_value_and_grad
        def loss_fn(model: Any) -> Any:
            cell, embed, head = model

            def one(ids: Any, behind: Any, length: Any) -> Any:
                def advance(carried: Any, words: Any) -> Any:
                    carried = cell(embed(words[0]), carried)
                    return carried, optax.softmax_cross_entropy_with_integer_labels(head(carried[0]), words[1])

                _, each = jax.lax.scan(advance, (jnp.zeros(DIM), jnp.zeros(DIM)), (ids, behind))
                counts = jnp.arange(ids.shape[0]) < length
                return (each * counts).sum(), counts.sum()

            losses, counts = jax.vmap(one)(batch["ids"], batch["next"], batch["length"])
            return losses.sum() / counts.sum()

        loss, grads = loss_fn(model)
        updates, opt = transform.update(grads, opt)
        return (eqx.apply_updates(model, updates), opt), loss

    state = (model, transform.init(eqx.filter(model, eqx.is_array)))
    return Case(step=step, state=state, batch=sentences() | {"length": whole(6, 16, seed=4) + 1}, jit=eqx.filter_jit)


@case
def nnx_scanned_layers_with_a_head_in_chunks() -> Case:
    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.attention, self.norm = Attention(rngs), nnx.RMSNorm(DIM, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return x + self.attention(self.norm(x))

    class Scanned(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            @nnx.split_rngs(splits=3)
            @nnx.vmap(in_axes=(0,), out_axes=0)
            def blocks(rngs: nnx.Rngs) -> Any:
                return Block(rngs)

            self.embed, self.blocks = nnx.Embed(WORDS, DIM, rngs=rngs), blocks(rngs)

        def __call__(self, ids: Any) -> Any:
            @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
            def through(block: Any, x: Any) -> Any:
                return nnx.remat(lambda block, x: block(x))(block, x)

            return through(self.blocks, self.embed(ids))

    model = Scanned(nnx.Rngs(0))

    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        def loss_fn(model: Any) -> Any:
            @jax.checkpoint
            def chunk(hidden: Any, words: Any) -> Any:
                logits = hidden @ model.embed.embedding[...].T
                return optax.softmax_cross_entropy_with_integer_labels(logits, words).sum()

            chunks = zip(jnp.split(model(batch["ids"]), 3, 1), jnp.split(batch["next"], 3, 1), strict=True)
            return sum(chunk(hidden, words) for hidden, words in chunks) / batch["next"].size

        loss, grads = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return loss

    state = (model, optimized(model, optax.contrib.schedule_free_adamw(1e-2, eps=1e-3)))
    return of_objects(step, state, sentences(), narrow=True)


@case
def nnx_likeliest_words_of_a_teacher_under_two_optimizers() -> Case:
    model = Decoder(nnx.Rngs(0))
    words = nnx.All(nnx.Param, nnx.PathContains("embed"))
    body = nnx.All(nnx.Param, nnx.Not(nnx.PathContains("embed")))

    def step(model: Any, of_body: Any, of_words: Any, teacher: Any, batch: Any) -> Any:
        likely, which = jax.lax.top_k(teacher(batch["ids"]) / 2, 4)

        def loss_fn(model: Any) -> Any:
            own = jax.nn.log_softmax(jnp.take_along_axis(model(batch["ids"]) / 2, which, -1))
            return (jax.nn.softmax(likely) * (jax.nn.log_softmax(likely) - own)).sum(-1).mean() * 4

        loss, grads = nnx.value_and_grad(loss_fn)(model)
        body_grads, word_grads, _ = nnx.split_state(grads, body, words, ...)
        of_body.update(model, body_grads)
        of_words.update(model, word_grads)
        return loss

    of_body = nnx.Optimizer(model, optax.contrib.muon(1e-2), wrt=body)
    of_words = nnx.Optimizer(model, optax.adam(1e-3, eps=1e-3), wrt=words)
    return of_objects(step, (model, of_body, of_words, Decoder(nnx.Rngs(1))), sentences(), narrow=True)


@case
def jax_advantages_by_scan_with_clipped_values() -> Case:
    params = {"policy": mlp(FEATURES, WIDTH, CLASSES), "value": mlp(FEATURES, WIDTH, 1, seed=5)}
    transform = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2, eps=1e-3))
    batch = {
        "seen": drawn(16, 5, FEATURES, seed=1),
        "done": whole(CLASSES, 16, 5, seed=2),
        "reward": drawn(16, 5, seed=3),
        "value": drawn(16, 5, seed=4),
        "ended": whole(2, 16, 5, seed=5).astype(jnp.float32),
        "old": drawn(16, 5, seed=6, scale=0.1) - 1.4,
    }

    def advantages(reward: Any, value: Any, ended: Any) -> Any:
        def back(carried: Any, at: Any) -> Any:
            reward, value, behind, ended = at
            carried = reward + 0.99 * behind * (1 - ended) - value + 0.95 * 0.99 * (1 - ended) * carried
            return carried, carried

        behind = jnp.append(value[1:], 0.0)
        return jax.lax.scan(back, jnp.zeros(()), (reward, value, behind, ended), reverse=True)[1]

    def step(state: Any, batch: Any) -> Any:
        params, opt = state
        advantage = jax.vmap(advantages)(batch["reward"], batch["value"], batch["ended"])
        returns = advantage + batch["value"]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)

        def loss_fn(params: Any) -> Any:
            guesses = jax.nn.log_softmax(forward(params["policy"], batch["seen"]))
            taken = jnp.take_along_axis(guesses, batch["done"][..., None], -1)[..., 0]
            ratio, value = jnp.exp(taken - batch["old"]), forward(params["value"], batch["seen"])[..., 0]
            near = batch["value"] + jnp.clip(value - batch["value"], -0.2, 0.2)
            off = 0.5 * jnp.maximum((value - returns) ** 2, (near - returns) ** 2).mean()
            gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage).mean()
            entropy = -(jnp.exp(guesses) * guesses).sum(-1).mean()
            beside = {
                "clipped": (jnp.abs(ratio - 1) > 0.2).astype(ratio.dtype).mean(),
                "away": (ratio - 1 - jnp.log(ratio)).mean(),
            }
            return -gain + 0.5 * off - 0.01 * entropy, beside

        (loss, beside), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, opt = transform.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), (loss, beside)

    return Case(step=step, state=(params, transform.init(params)), batch=batch)
