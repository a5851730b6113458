"""Small projects with words, each step a whole one as its authors write it."""

from __future__ import annotations

from functools import partial
from typing import Any

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import lax
from jax.sharding import AxisType, PartitionSpec

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
    cross_entropy,
    drawn,
    forward,
    in_place,
    mlp,
    sentences,
    sgd,
    whole,
)

DIM = 8


@case
def jax_answers_rewarded_per_word_with_values_and_whitened_advantages() -> Case:
    """RLHF by PPO: a penalty on leaving the reference, GAE over words, advantages whitened over the batch."""

    def net(params: Any, ids: Any) -> Any:
        h = jnp.tanh(params["words"][ids] @ params["in"])
        h = h + jnp.cumsum(h, 1) / (1 + jnp.arange(ids.shape[1]))[None, :, None]
        return h @ params["words"].T, (h @ params["value"])[..., 0]

    def chosen(logits: Any, ids: Any) -> Any:
        return jnp.take_along_axis(jax.nn.log_softmax(logits), ids[..., None], -1)[..., 0]

    def masked_mean(x: Any, mask: Any) -> Any:
        return (x * mask).sum() / mask.sum()

    def loss_fn(params: Any, reference: Any, batch: Any) -> Any:
        mask = (jnp.arange(LENGTH)[None] < batch["length"][:, None]).astype(batch["old"].dtype)
        logits, values = net(params, batch["ids"])
        logp = chosen(logits, batch["next"])
        kl = batch["old"] - chosen(net(reference, batch["ids"])[0], batch["next"])
        last = jnp.arange(LENGTH)[None] == batch["length"][:, None] - 1
        rewards = -0.1 * kl * mask + jnp.where(last, batch["score"][:, None], 0.0)

        def back(carry: Any, now: Any) -> Any:
            advantage, ahead = carry
            reward, value, there = now
            advantage = (reward + ahead - value + 0.95 * advantage) * there
            return (advantage, value * there), advantage

        given = jax.tree.map(lambda x: x.T, (rewards, batch["values"], mask))
        start = (jnp.zeros_like(batch["score"]), jnp.zeros_like(batch["score"]))
        advantages = lax.scan(back, start, given, reverse=True)[1].T
        returns = advantages + batch["values"]
        mean = masked_mean(advantages, mask)
        spread = masked_mean((advantages - mean) ** 2, mask)
        white = lax.stop_gradient((advantages - mean) * lax.rsqrt(spread + 1e-8))
        ratio = jnp.exp(logp - batch["old"])
        policy = masked_mean(jnp.maximum(-white * ratio, -white * jnp.clip(ratio, 0.8, 1.2)), mask)
        clipped = batch["values"] + jnp.clip(values - batch["values"], -0.2, 0.2)
        value = 0.5 * masked_mean(jnp.maximum((values - returns) ** 2, (clipped - returns) ** 2), mask)
        entropy = masked_mean(-(jax.nn.softmax(logits) * jax.nn.log_softmax(logits)).sum(-1), mask)
        stats = {"kl": masked_mean(kl, mask), "clipped": masked_mean(jnp.abs(ratio - 1) > 0.2, mask)}
        return policy + 0.1 * value - 0.01 * entropy, stats

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2, eps=1e-3))

    def step(state: Any, batch: Any) -> Any:
        (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(state["params"], state["reference"], batch)
        updates, opt = optimizer.update(grads, state["opt"], state["params"])
        return {**state, "params": optax.apply_updates(state["params"], updates), "opt": opt}, loss, stats

    params = {
        "words": drawn(WORDS, DIM, scale=0.3),
        "in": drawn(DIM, DIM, seed=1, scale=0.3),
        "value": drawn(DIM, 1, seed=2),
    }
    state = {"params": params, "reference": jax.tree.map(jnp.copy, params), "opt": optimizer.init(params)}
    batch = {
        **sentences(),
        "old": drawn(SAMPLES, LENGTH, seed=3, scale=0.2) - 2.4,
        "values": drawn(SAMPLES, LENGTH, seed=4, scale=0.2),
        "score": drawn(SAMPLES, seed=5),
        "length": 2 + whole(LENGTH - 1, SAMPLES, seed=6),
    }
    return Case(step=step, state=state, batch=batch)


@case
def haiku_experts_that_choose_their_words() -> Case:
    """Expert choice: every expert takes the words of the whole batch that want it most."""

    def net(ids: Any) -> Any:
        x = hk.Embed(WORDS, DIM)(ids)
        flat = hk.LayerNorm(-1, True, True)(x).reshape(-1, DIM)
        gates = jax.nn.softmax(hk.Linear(4, with_bias=False, name="router")(flat))
        count = flat.shape[0] // 4
        weights, places = lax.top_k(gates.T, count)
        up = hk.get_parameter("up", (4, DIM, 16), init=hk.initializers.VarianceScaling())
        down = hk.get_parameter("down", (4, 16, DIM), init=hk.initializers.VarianceScaling())
        taken = jnp.einsum("ecd,edf->ecf", flat[places], up)
        made = jnp.einsum("ecf,efd->ecd", jax.nn.gelu(taken), down) * weights[..., None]
        back = jnp.zeros_like(flat).at[places.reshape(-1)].add(made.reshape(-1, DIM))
        return hk.Linear(WORDS)(x + back.reshape(x.shape))

    network = hk.without_apply_rng(hk.transform(net))
    optimizer = adam()

    def loss(params: Any, batch: Any) -> Any:
        return cross_entropy(network.apply(params, batch["ids"]), batch["next"])

    @jax.jit
    def update(state: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(state[0], batch)
        updates, opt = optimizer.update(grads, state[1])
        return (optax.apply_updates(state[0], updates), opt), value

    params = network.init(jax.random.PRNGKey(0), sentences()["ids"])
    return Case(step=update, state=(params, optimizer.init(params)), batch=sentences())


@case
def equinox_selective_layers_scanned_in_time_and_depth() -> Case:
    """Mamba-like: layers stacked and scanned, each checkpointed, with a short convolution and a scan over words."""

    class Layer(eqx.Module):
        norm: eqx.nn.RMSNorm
        into: eqx.nn.Linear
        short: jax.Array
        rates: eqx.nn.Linear
        decay: jax.Array
        skip: jax.Array
        out: eqx.nn.Linear

        def __init__(self, key: Any) -> None:
            keys = jax.random.split(key, 4)
            self.norm = eqx.nn.RMSNorm(DIM)
            self.into = eqx.nn.Linear(DIM, 2 * DIM, use_bias=False, key=keys[0])
            self.short = 0.3 * jax.random.normal(keys[1], (3, DIM))
            self.rates = eqx.nn.Linear(DIM, DIM + 8, key=keys[2])
            self.decay, self.skip = jnp.log(jnp.tile(jnp.arange(1.0, 5.0), (DIM, 1))), jnp.ones(DIM)
            self.out = eqx.nn.Linear(DIM, DIM, use_bias=False, key=keys[3])

        def __call__(self, x: Any) -> Any:
            u, gate = jnp.split(jax.vmap(self.into)(jax.vmap(self.norm)(x)), 2, -1)
            padded = jnp.pad(u, ((2, 0), (0, 0)))
            u = jax.nn.silu(sum(padded[at : at + u.shape[0]] * self.short[at] for at in range(3)))
            rates = jax.vmap(self.rates)(u)
            delta, b, c = jax.nn.softplus(rates[:, :DIM]), rates[:, DIM : DIM + 4], rates[:, DIM + 4 :]

            def word(state: Any, now: Any) -> Any:
                u, delta, b, c = now
                state = jnp.exp(-delta[:, None] * jnp.exp(self.decay)) * state + (delta * u)[:, None] * b
                return state, state @ c

            _, y = lax.scan(word, jnp.zeros((DIM, 4), x.dtype), (u, delta, b, c))
            return x + jax.vmap(self.out)((y + self.skip * u) * jax.nn.silu(gate))

    class Model(eqx.Module):
        words: eqx.nn.Embedding
        layers: Layer
        norm: eqx.nn.RMSNorm

        def __init__(self, key: Any) -> None:
            one, two = jax.random.split(key)
            self.words = eqx.nn.Embedding(WORDS, DIM, key=one)
            self.layers = eqx.filter_vmap(Layer)(jax.random.split(two, 4))
            self.norm = eqx.nn.RMSNorm(DIM)

        def __call__(self, ids: Any) -> Any:
            arrays, static = eqx.partition(self.layers, eqx.is_array)

            @jax.checkpoint
            def deeper(x: Any, own: Any) -> Any:
                return eqx.combine(own, static)(x), None

            x, _ = lax.scan(deeper, jax.vmap(self.words)(ids), arrays)
            return jax.vmap(self.norm)(x) @ self.words.weight.T

    transform = optax.adamw(1e-2, eps=1e-3)

    def step(state: Any, batch: Any) -> Any:
        model, opt_state = state

        def loss_fn(model: Any) -> Any:
            return cross_entropy(jax.vmap(model)(batch["ids"]), batch["next"])

        loss, grads = eqx.filter_value_and_grad(loss_fn)(model)
        updates, opt_state = transform.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
        return (eqx.apply_updates(model, updates), opt_state), loss

    model = Model(jax.random.key(0))
    state = (model, transform.init(eqx.filter(model, eqx.is_inexact_array)))
    return Case(step=step, state=state, batch=sentences(), jit=eqx.filter_jit)


@case
def haiku_words_tagged_by_a_chain_over_a_recurrence_both_ways() -> Case:
    """A bidirectional LSTM below a CRF: the partition function by a scan, padded words left out."""

    def net(ids: Any) -> Any:
        x = hk.Embed(WORDS, DIM)(ids).transpose(1, 0, 2)
        ahead, behind = hk.LSTM(WIDTH), hk.LSTM(WIDTH)
        size = ids.shape[0]
        there, _ = hk.dynamic_unroll(ahead, x, ahead.initial_state(size))
        back, _ = hk.dynamic_unroll(behind, x[::-1], behind.initial_state(size))
        scores = hk.Linear(CLASSES)(jnp.concatenate([there, back[::-1]], -1))
        steps = hk.get_parameter("steps", (CLASSES, CLASSES), init=jnp.zeros)
        return scores.transpose(1, 0, 2), steps

    network = hk.without_apply_rng(hk.transform(net))

    def loss(params: Any, batch: Any) -> Any:
        scores, steps = network.apply(params, batch["ids"])
        mask = jnp.arange(LENGTH)[None] < batch["length"][:, None]

        def one(scores: Any, tags: Any, mask: Any) -> Any:
            def ahead(total: Any, now: Any) -> Any:
                score, there = now
                moved = jax.nn.logsumexp(total[:, None] + steps, 0) + score
                return jnp.where(there, moved, total), None

            total, _ = lax.scan(ahead, scores[0], (scores[1:], mask[1:]))
            own = jnp.where(mask, jnp.take_along_axis(scores, tags[:, None], 1)[:, 0], 0.0).sum()
            own = own + jnp.where(mask[1:], steps[tags[:-1], tags[1:]], 0.0).sum()
            return jax.nn.logsumexp(total) - own

        return jax.vmap(one)(scores, batch["tags"], mask).mean()

    optimizer = optax.rmsprop(1e-2, eps=1e-3, momentum=0.9)

    def update(state: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(state[0], batch)
        updates, opt = optimizer.update(grads, state[1])
        return (optax.apply_updates(state[0], updates), opt), value

    params = network.init(jax.random.PRNGKey(0), sentences()["ids"])
    batch = {
        "ids": sentences()["ids"],
        "tags": whole(CLASSES, SAMPLES, LENGTH, seed=3),
        "length": 1 + whole(LENGTH, SAMPLES, seed=4),
    }
    return Case(step=update, state=(params, optimizer.init(params)), batch=batch)


@case
def nnx_speech_read_by_a_convolution_and_written_with_cross_attention() -> Case:
    """Whisper-like, as modules of NNX: a strided stem, tied words, labels of -100 left out, teacher forced."""

    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs, cross: bool) -> None:
            self.norms = nnx.List([nnx.LayerNorm(DIM, rngs=rngs) for _ in range(3)])
            self.own = nnx.MultiHeadAttention(2, DIM, decode=False, rngs=rngs)
            self.other = nnx.MultiHeadAttention(2, DIM, decode=False, rngs=rngs) if cross else None
            self.up, self.down = nnx.Linear(DIM, 16, rngs=rngs), nnx.Linear(16, DIM, rngs=rngs)

        def __call__(self, x: Any, heard: Any = None, mask: Any = None) -> Any:
            x = x + self.own(self.norms[0](x), mask=mask)
            if self.other is not None:
                x = x + self.other(self.norms[1](x), heard)
            return x + self.down(nnx.gelu(self.up(self.norms[2](x))))

    class Speech(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.stem1 = nnx.Conv(3, DIM, (3,), rngs=rngs)
            self.stem2 = nnx.Conv(DIM, DIM, (3,), strides=(2,), rngs=rngs)
            self.words = nnx.Embed(WORDS, DIM, rngs=rngs)
            self.places = nnx.Param(0.02 * jax.random.normal(rngs.params(), (LENGTH, DIM)))
            self.heard, self.said = Block(rngs, cross=False), Block(rngs, cross=True)
            self.norm = nnx.LayerNorm(DIM, rngs=rngs)

        def __call__(self, sound: Any, ids: Any) -> Any:
            heard = self.heard(nnx.gelu(self.stem2(nnx.gelu(self.stem1(sound)))))
            x = self.words(ids) + self.places[...]
            x = self.said(x, heard, nnx.make_causal_mask(ids))
            return self.words.attend(self.norm(x))

    def loss_fn(model: Any, batch: Any) -> Any:
        start = jnp.zeros_like(batch["labels"][:, :1])
        ids = jnp.where(batch["labels"] == -100, 0, batch["labels"])
        logits = model(batch["sound"], jnp.concatenate([start, ids[:, :-1]], 1))
        there = batch["labels"] != -100
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, ids)
        return jnp.where(there, losses, 0).sum() / there.sum(), there.sum()

    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        (loss, words), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model, batch)
        optimizer.update(model, grads)
        return {"loss": loss, "words": words}

    model = Speech(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.chain(optax.clip_by_global_norm(1.0), adam()), wrt=nnx.Param)
    labels = jnp.where(
        jnp.arange(LENGTH)[None] < 1 + whole(LENGTH, SAMPLES, seed=4)[:, None],
        whole(WORDS, SAMPLES, LENGTH, seed=5),
        -100,
    )
    return Case(
        step=step,
        state=(model, optimizer),
        batch={"sound": drawn(SAMPLES, 10, 3, seed=6), "labels": labels},
        after=in_place,
        jit=nnx.jit,
        narrow=True,
        call=lambda run, state, batch: run(*state, batch),
        options={"batch_argnums": 2},
    )


@case
def jax_words_of_a_shared_table_with_its_own_gradient_in_a_shard_map() -> Case:
    """The cross-entropy of a vocabulary cut over devices, each with its part of the logits, and its own backward."""

    def step(params: Any, batch: Any) -> Any:
        mesh = jax.make_mesh((4,), ("words",), (AxisType.Auto,), devices=jax.devices()[:4])

        @jax.custom_vjp
        def losses(logits: Any, ids: Any) -> Any:
            return ahead(logits, ids)[0]

        def ahead(logits: Any, ids: Any) -> Any:
            first = lax.axis_index("words") * logits.shape[-1]
            most = lax.pmax(lax.stop_gradient(logits).max(-1), "words")
            total = lax.psum(jnp.exp(logits - most[:, None]).sum(-1), "words")
            mine = jax.nn.one_hot(ids - first, logits.shape[-1], dtype=logits.dtype)
            own = lax.psum((logits * mine).sum(-1), "words")
            return jnp.log(total) + most - own, (jnp.exp(logits - most[:, None]) / total[:, None], mine)

        def back(kept: Any, slope: Any) -> Any:
            chances, mine = kept
            return (chances - mine) * slope[:, None], None

        losses.defvjp(ahead, back)

        @partial(
            jax.shard_map,
            mesh=mesh,
            in_specs=(PartitionSpec(), PartitionSpec("words"), PartitionSpec()),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
        def cut(h: Any, table: Any, ids: Any) -> Any:
            return losses(h @ table.T, ids)

        def loss(params: Any) -> Any:
            h = forward(params["body"], batch["x"])
            return cut(h, params["table"], batch["y"]).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads), value

    params = {"body": mlp(FEATURES, WIDTH, WIDTH), "table": drawn(WORDS, WIDTH, seed=3)}
    batch = {"x": drawn(SAMPLES, FEATURES, seed=1), "y": whole(WORDS, SAMPLES, seed=2)}
    return Case(step=step, state=params, batch=batch)
