"""Decoders as users post them: recomputation by names, preferences, sampling, dropless experts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.ad_checkpoint import checkpoint_name

from tests.corpus.case import (
    LENGTH,
    SAMPLES,
    WIDTH,
    WORDS,
    Case,
    adam,
    case,
    cross_entropy,
    drawn,
    sentences,
    whole,
    with_optimizer,
)


def block(p: Any, x: Any) -> Any:
    """Attention and a perceptron, as in a decoder."""
    h = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
    scores = jnp.einsum("bqd,bkd->bqk", h @ p["q"], h @ p["k"]) / WIDTH**0.5
    seen = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    x = x + jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)) @ (h @ p["v"])
    return x + jax.nn.gelu(checkpoint_name(x @ p["up"], "up")) @ p["down"]


def blocks(count: int) -> Any:
    """Weights of such layers, stacked."""
    shapes = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "up": (WIDTH, 16), "down": (16, WIDTH)}
    return {name: drawn(count, *shape, seed=ord(name[0]), scale=0.3) for name, shape in shapes.items()}


@case
def jax_checkpoint_saves_names_over_scanned_layers() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        policy = jax.checkpoint_policies.save_only_these_names("up")
        body = jax.checkpoint(lambda x, p: (block(p, x), None), policy=policy, prevent_cse=False)
        x, _ = jax.lax.scan(body, params["table"][batch["ids"]], params["layers"], unroll=2)
        return cross_entropy(x @ params["table"].T, batch["next"])

    return with_optimizer(adam(), loss, {"table": drawn(WORDS, WIDTH), "layers": blocks(4)}, sentences())


def log_probability(params: Any, ids: Any, mask: Any) -> Any:
    """Of each sequence, summed over the words of its answer."""
    logits = block(params["layer"], params["table"][ids[:, :-1]]) @ params["table"].T
    each = jnp.take_along_axis(jax.nn.log_softmax(logits), ids[:, 1:, None], -1)[..., 0]
    return (each * mask[:, 1:]).sum(-1)


def small_decoder() -> Any:
    return {"table": drawn(WORDS, WIDTH, scale=0.5), "layer": jax.tree.map(lambda w: w[0], blocks(1))}


@case
def jax_direct_preferences_with_a_frozen_reference() -> Case:
    optimizer = adam()

    def step(state: Any, batch: Any) -> Any:
        params, opt_state, reference = state

        def loss_fn(params: Any) -> Any:
            def gain(side: str) -> Any:
                given = batch[side], batch["mask"]
                return log_probability(params, *given) - jax.lax.stop_gradient(log_probability(reference, *given))

            chosen, rejected = gain("chosen"), gain("rejected")
            loss = -jax.nn.log_sigmoid(0.1 * (chosen - rejected)).mean()
            return loss, {"margin": 0.1 * (chosen - rejected).mean(), "accuracy": (chosen > rejected).mean()}

        (loss, aux), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state, reference), (loss, aux)

    params = small_decoder()
    mask = (jnp.arange(LENGTH) >= 2).astype(jnp.float32) * jnp.ones((SAMPLES, 1))
    batch = {
        "chosen": whole(WORDS, SAMPLES, LENGTH, seed=1),
        "rejected": whole(WORDS, SAMPLES, LENGTH, seed=2),
        "mask": mask,
    }
    return Case(step=step, state=(params, optimizer.init(params), jax.tree.map(lambda w: w * 0.9, params)), batch=batch)


@case
def jax_speculative_acceptance() -> Case:
    """Which words of a small model a large one accepts, and what it puts behind them."""

    def step(params: Any, batch: Any, key: Any) -> Any:
        draft, target = (
            jax.nn.softmax(params[name]["table"][batch["ids"]] @ params[name]["out"]) for name in ("draft", "target")
        )
        u = jax.random.uniform(key, batch["next"].shape)
        p, q = (jnp.take_along_axis(one, batch["next"][..., None], -1)[..., 0] for one in (target, draft))
        accepted = jnp.cumprod((u < p / q).astype(jnp.int32), axis=1)
        count = accepted.sum(1)
        at = jnp.minimum(count, LENGTH - 1)[:, None, None]
        left = jnp.maximum(jnp.take_along_axis(target - draft, at, 1)[:, 0], 0)
        return {"accepted": count, "next": jnp.argmax(left, -1), "rate": count.mean()}

    params = {
        name: {"table": drawn(WORDS, WIDTH, seed=s), "out": drawn(WIDTH, WORDS, seed=s + 1)}
        for name, s in (("draft", 1), ("target", 5))
    }
    return Case(
        step=step,
        state=params,
        batch=sentences(),
        after=lambda state, result: state,
        call=lambda run, state, batch: run(state, batch, jax.random.key(2)),
    )


@case
def jax_generation_with_a_cache_of_keys_and_values() -> Case:
    def step(params: Any, batch: Any) -> Any:
        samples, prompt = batch["ids"].shape
        total = prompt + 3
        p, dtype = params["layer"], params["table"].dtype

        def one(carry: Any, t: Any) -> Any:
            words, keys, values, last = carry
            ids = jnp.where(t < prompt, jax.lax.dynamic_index_in_dim(words, t, 1, keepdims=False), last)
            x = params["table"][ids]
            keys = jax.lax.dynamic_update_slice(keys, (x @ p["k"])[:, None], (0, t, 0))
            values = jax.lax.dynamic_update_slice(values, (x @ p["v"])[:, None], (0, t, 0))
            scores = jnp.einsum("bd,bkd->bk", x @ p["q"], keys)
            weights = jax.nn.softmax(jnp.where(jnp.arange(total) <= t, scores, -jnp.inf))
            x = x + jnp.einsum("bk,bkd->bd", weights, values)
            last = jnp.argmax(x @ params["table"].T, -1).astype(ids.dtype)
            return (words.at[:, t].set(ids), keys, values, last), last

        empty = jnp.zeros((samples, total, WIDTH), dtype)
        words = jnp.pad(batch["ids"], ((0, 0), (0, 3)))
        (words, *_), last = jax.lax.scan(one, (words, empty, empty, jnp.zeros_like(words[:, 0])), jnp.arange(total))
        return {"words": words, "last": last.T}

    return Case(step=step, state=small_decoder(), batch={"ids": sentences()["ids"]}, after=lambda state, result: state)


@case
def jax_dropless_experts_by_sorting() -> Case:
    """Words sorted by expert, a product for each group, and back."""

    def experts(p: Any, x: Any) -> Any:
        tokens = x.reshape(-1, WIDTH)
        weights, chosen = jax.lax.top_k(jax.nn.softmax(tokens @ p["router"]), 2)
        weights = weights / weights.sum(-1, keepdims=True)
        flat = chosen.reshape(-1)
        order = jnp.argsort(flat)
        sizes = jnp.bincount(flat, length=4)
        made = jax.nn.silu(jax.lax.ragged_dot(tokens[order // 2], p["up"], sizes))
        made = jax.lax.ragged_dot(made, p["down"], sizes)
        back = made[jnp.argsort(order)].reshape(-1, 2, WIDTH)
        return x + (back * weights[..., None]).sum(1).reshape(x.shape)

    def loss(params: Any, batch: Any) -> Any:
        x = params["table"][batch["ids"]]
        for p in params["layers"]:
            x = experts(p, x)
        return cross_entropy(x @ params["out"], batch["next"])

    layers = [
        {
            "router": drawn(WIDTH, 4, seed=s),
            "up": drawn(4, WIDTH, 16, seed=s + 1, scale=0.3),
            "down": drawn(4, 16, WIDTH, seed=s + 2, scale=0.3),
        }
        for s in (11, 21)
    ]
    params = {"table": drawn(WORDS, WIDTH), "layers": layers, "out": drawn(WIDTH, WORDS)}
    return with_optimizer(adam(), loss, params, sentences())


@case
def jax_dropless_experts_scattered_back() -> Case:
    """The same with sums into the words that the rows came from."""

    def experts(p: Any, x: Any) -> Any:
        tokens = x.reshape(-1, WIDTH)
        weights, chosen = jax.lax.top_k(jax.nn.softmax(tokens @ p["router"]), 2)
        order = jnp.argsort(chosen.reshape(-1), stable=True)
        rows = order // 2
        sizes = jnp.sum(jax.nn.one_hot(chosen.reshape(-1), 4, dtype=jnp.int32), axis=0)
        made = jax.lax.ragged_dot(jnp.take(tokens, rows, axis=0), p["up"], sizes)
        made = jax.lax.ragged_dot(jax.nn.gelu(made), p["down"], sizes) * weights.reshape(-1)[order][:, None]
        return x + jnp.zeros_like(tokens).at[rows].add(made).reshape(x.shape)

    def loss(params: Any, batch: Any) -> Any:
        return cross_entropy(experts(params["moe"], params["table"][batch["ids"]]) @ params["out"], batch["next"])

    moe = {
        "router": drawn(WIDTH, 4, seed=3),
        "up": drawn(4, WIDTH, 16, seed=4, scale=0.3),
        "down": drawn(4, 16, WIDTH, seed=5, scale=0.3),
    }
    params = {"table": drawn(WORDS, WIDTH), "moe": moe, "out": drawn(WIDTH, WORDS)}
    return with_optimizer(adam(), loss, params, sentences())
