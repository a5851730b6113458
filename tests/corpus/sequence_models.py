"""Steps of models of sequences beside plain attention: states, windows, memories and heads of their own."""

from __future__ import annotations

from functools import partial
from typing import Any

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import optax
from flax import nnx

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
    forward,
    in_place,
    mlp,
    sentences,
    sgd,
    whole,
    with_optimizer,
)

HEADS, LAYERS, CHUNK = 2, 3, 2


def rms(x: Any, scale: Any) -> Any:
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6) * (1 + scale)


def turned(x: Any, base: float = 100.0) -> Any:
    """Rotary positions, of `[samples, places, heads, features]`."""
    angle = jnp.arange(x.shape[1])[:, None] / base ** jnp.linspace(0.0, 1.0, x.shape[-1] // 2)
    sin, cos = jnp.sin(angle)[:, None].astype(x.dtype), jnp.cos(angle)[:, None].astype(x.dtype)
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


@case
def jax_windows_and_whole_rows_by_turns() -> Case:
    """Layers in a scan, of which every other looks at a window; logits capped, norms on both sides, grouped keys."""

    def layer(x: Any, given: Any) -> Any:
        own, wide = given
        y = rms(x, own["before"])
        q = turned(jnp.einsum("btd,dhk->bthk", y, own["q"]))
        k, v = turned(jnp.einsum("btd,dhk->bthk", y, own["k"])), jnp.einsum("btd,dhk->bthk", y, own["v"])
        scores = jnp.einsum("bthk,bsgk->bhts", q, k) / 2.0
        scores = 5.0 * jnp.tanh(scores / 5.0)
        back = jnp.arange(LENGTH)[:, None] - jnp.arange(LENGTH)
        seen = (back >= 0) & (wide | (back < 3))
        mixed = jax.nn.softmax(jnp.where(seen, scores, -1e9)) @ v[:, :, 0][:, None]
        x = x + rms(jnp.einsum("bhtk,hkd->btd", mixed, own["o"]), own["behind"])
        gate, up = jnp.split(rms(x, own["before"]) @ own["in"], 2, -1)
        return x + (jax.nn.gelu(gate) * up) @ own["out"], None

    def loss(params: Any, batch: Any) -> Any:
        x = params["embed"][batch["ids"]] * WIDTH**0.5
        kept = jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
        x, _ = jax.lax.scan(kept, x, (params["layers"], jnp.arange(LAYERS) % 2 == 1))
        logits = 30.0 * jnp.tanh(x @ params["embed"].T / 30.0)
        return cross_entropy(logits, batch["next"])

    layers = {
        "q": drawn(LAYERS, WIDTH, HEADS, 4, scale=0.3),
        "k": drawn(LAYERS, WIDTH, 1, 4, seed=1, scale=0.3),
        "v": drawn(LAYERS, WIDTH, 1, 4, seed=2, scale=0.3),
        "o": drawn(LAYERS, HEADS, 4, WIDTH, seed=3, scale=0.3),
        "in": drawn(LAYERS, WIDTH, 4 * WIDTH, seed=4, scale=0.3),
        "out": drawn(LAYERS, 2 * WIDTH, WIDTH, seed=5, scale=0.2),
        "before": jnp.zeros((LAYERS, WIDTH)),
        "behind": jnp.zeros((LAYERS, WIDTH)),
    }
    params = {"embed": drawn(WORDS, WIDTH, seed=6, scale=0.3), "layers": layers}
    return with_optimizer(optax.adamw(1e-2, eps=1e-3), loss, params, sentences())


@case
def jax_state_space_in_chunks_with_a_short_convolution() -> Case:
    """Products inside a chunk, a state handed from chunk to chunk, a causal convolution of each feature before."""

    def mixed(params: Any, x: Any) -> Any:
        x = jax.lax.conv_general_dilated(
            x, params["short"], (1,), [(2, 0)], dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=WIDTH
        )
        x = jax.nn.silu(x)
        decay = -jax.nn.softplus(x @ params["decay"])
        b, c = x @ params["b"], x @ params["c"]

        def chunks(y: Any) -> Any:
            return y.reshape(y.shape[0], LENGTH // CHUNK, CHUNK, *y.shape[2:]).swapaxes(0, 1)

        def one(state: Any, now: Any) -> Any:
            x, b, c, decay = now
            fallen = jnp.cumsum(decay, 1)
            apart = jnp.exp(fallen[:, :, None] - fallen[:, None])
            inside = jnp.where(jnp.tril(jnp.ones((CHUNK, CHUNK), bool)), apart * (c @ b.swapaxes(1, 2)), 0.0)
            y = inside @ x + jnp.exp(fallen)[..., None] * jnp.einsum("btn,bnd->btd", c, state)
            left = jnp.exp(fallen[:, -1:] - fallen)
            state = jnp.exp(fallen[:, -1])[:, None, None] * state + jnp.einsum("btn,bt,btd->bnd", b, left, x)
            return state, y

        first = jnp.zeros((x.shape[0], 4, WIDTH), x.dtype)
        _, y = jax.lax.scan(one, first, (chunks(x), chunks(b), chunks(c), chunks(decay)))
        return y.swapaxes(0, 1).reshape(x.shape)

    def loss(params: Any, batch: Any) -> Any:
        x = params["embed"][batch["ids"]]
        for own in params["layers"]:
            gate = jax.nn.silu(x @ own["gate"])
            x = x + (mixed(own, x) * gate) @ own["out"]
        return cross_entropy(x @ params["embed"].T, batch["next"])

    def one(seed: int) -> dict[str, Any]:
        return {
            "short": drawn(3, 1, WIDTH, seed=seed, scale=0.4),
            "decay": drawn(WIDTH, seed=seed + 1),
            "b": drawn(WIDTH, 4, seed=seed + 2, scale=0.3),
            "c": drawn(WIDTH, 4, seed=seed + 3, scale=0.3),
            "gate": drawn(WIDTH, WIDTH, seed=seed + 4, scale=0.3),
            "out": drawn(WIDTH, WIDTH, seed=seed + 5, scale=0.3),
        }

    params = {"embed": drawn(WORDS, WIDTH, scale=0.5), "layers": [one(1), one(11)]}
    return with_optimizer(adam(), loss, params, sentences())


@case
def jax_layer_that_learns_while_it_reads() -> Case:
    """The hidden state is a weight that takes a step down its own gradient at each word."""

    def read(own: Any, x: Any) -> Any:
        keys, values, queries = x @ own["k"], x @ own["v"], x @ own["q"]

        def inner(w: Any, k: Any, v: Any) -> Any:
            return ((k @ w - v) ** 2).mean()

        def word(w: Any, now: Any) -> Any:
            k, v, q = now
            w = w - jax.nn.sigmoid(own["rate"]) * jax.grad(inner)(w, k, v)
            return w, q @ w

        return jax.lax.scan(word, own["w"], (keys, values, queries))[1]

    def loss(params: Any, batch: Any) -> Any:
        x = params["embed"][batch["ids"]]
        x = x + jax.vmap(partial(read, params["read"]))(x)
        return cross_entropy(forward(params["body"], x), batch["next"])

    inner = {name: drawn(WIDTH, WIDTH, seed=i, scale=0.3) for i, name in enumerate(("k", "v", "q", "w"))}
    params = {
        "embed": drawn(WORDS, WIDTH, seed=5),
        "read": inner | {"rate": jnp.zeros(())},
        "body": mlp(WIDTH, WIDTH, WORDS),
    }
    return with_optimizer(adam(), loss, params, sentences())


@case
def jax_memory_overwritten_by_the_delta_rule() -> Case:
    """Heads keep a matrix that forgets by a gate and is corrected by what the key recalls."""

    def loss(params: Any, batch: Any) -> Any:
        x = params["embed"][batch["ids"]]
        q, k, v = (jnp.einsum("btd,dhk->tbhk", x, params[name]) for name in "qkv")
        k = k / jnp.sqrt((k**2).sum(-1, keepdims=True) + 1e-6)
        strength, forget = (jax.nn.sigmoid(jnp.einsum("btd,dh->tbh", x, params[name])) for name in ("beta", "alpha"))

        def word(memory: Any, now: Any) -> Any:
            q, k, v, beta, alpha = now
            memory = alpha[..., None, None] * memory
            recalled = jnp.einsum("bhk,bhkv->bhv", k, memory)
            memory = memory + jnp.einsum("bhk,bhv->bhkv", k, beta[..., None] * (v - recalled))
            return memory, jnp.einsum("bhk,bhkv->bhv", q, memory)

        first = jnp.zeros((x.shape[0], HEADS, 4, 4), x.dtype)
        _, y = jax.lax.scan(word, first, (q, k, v, strength, forget))
        return cross_entropy(x.shape[0] ** 0 * jnp.einsum("tbhv,hvw->btw", y, params["head"]), batch["next"])

    params = {name: drawn(WIDTH, HEADS, 4, seed=i, scale=0.4) for i, name in enumerate("qkv")}
    params |= {
        "beta": drawn(WIDTH, HEADS, seed=4),
        "alpha": drawn(WIDTH, HEADS, seed=5),
        "embed": drawn(WORDS, WIDTH, seed=6),
        "head": drawn(HEADS, 4, WORDS, seed=7),
    }
    return with_optimizer(adam(), loss, params, sentences())


@case
def haiku_exponential_gates_held_by_their_maximum() -> Case:
    """A recurrence whose gates are exponentials, divided by a normalizer and kept in range by a running maximum."""

    class Cell(hk.RNNCore):
        def __call__(self, x: Any, state: Any) -> Any:
            c, n, m, h = state
            z, i, f, o = jnp.split(hk.Linear(4 * WIDTH)(jnp.concatenate([x, h], -1)), 4, -1)
            most = jnp.maximum(f + m, i)
            i, f = jnp.exp(i - most), jnp.exp(f + m - most)
            c, n = f * c + i * jnp.tanh(z), f * n + i
            h = jax.nn.sigmoid(o) * c / jnp.maximum(n, 1e-6)
            return h, (c, n, most, h)

        def initial_state(self, batch_size: Any) -> Any:
            return tuple(jnp.zeros((batch_size, WIDTH)) for _ in range(4))

    def run(ids: Any) -> Any:
        core = Cell()
        x = hk.Embed(WORDS, WIDTH)(ids)
        y, _ = hk.dynamic_unroll(core, x, core.initial_state(ids.shape[0]), time_major=False)
        return hk.Linear(WORDS)(hk.GroupNorm(2)(y.reshape(-1, WIDTH)).reshape(y.shape))

    net = hk.without_apply_rng(hk.transform(run))

    def loss(params: Any, batch: Any) -> Any:
        return cross_entropy(net.apply(params, batch["ids"]), batch["next"])

    return with_optimizer(adam(), loss, net.init(jax.random.key(0), sentences()["ids"]), sentences(), narrow=True)


@case
def jax_head_and_loss_in_one_function_with_its_own_gradient() -> Case:
    """Logits of a chunk of words at a time; the forward makes the gradients, the backward scales them."""

    @jax.custom_vjp
    def fused(x: Any, head: Any, labels: Any) -> Any:
        return forward_of(x, head, labels)[0]

    def forward_of(x: Any, head: Any, labels: Any) -> Any:
        rows = x.reshape(-1, CHUNK, WIDTH)

        def chunk(carry: Any, given: Any) -> Any:
            total, by_head = carry
            x, y = given
            p = jax.nn.log_softmax(x @ head)
            off = jnp.exp(p) - jax.nn.one_hot(y, WORDS, dtype=x.dtype)
            total = total - jnp.take_along_axis(p, y[:, None], 1).sum()
            return (total, by_head + x.T @ off), off @ head.T

        first = (jnp.zeros((), x.dtype), jnp.zeros_like(head))
        (total, by_head), by_x = jax.lax.scan(chunk, first, (rows, labels.reshape(-1, CHUNK)))
        count = labels.size
        return total / count, (by_x.reshape(x.shape) / count, by_head / count)

    def backward(held: Any, g: Any) -> Any:
        return g * held[0], g * held[1], None

    fused.defvjp(forward_of, backward)

    def loss(params: Any, batch: Any) -> Any:
        x = jnp.tanh(params["embed"][batch["ids"]] @ params["w"])
        return fused(x, params["head"], batch["next"])

    params = {
        "embed": drawn(WORDS, WIDTH),
        "w": drawn(WIDTH, WIDTH, seed=1, scale=0.4),
        "head": drawn(WIDTH, WORDS, seed=2),
    }
    return with_optimizer(adam(), loss, params, sentences())


@case
def nnx_attention_of_its_library_with_lengths_and_a_window() -> Case:
    """`jax.nn.dot_product_attention` with lengths of sentences and a local window; the loss counts real words."""

    class Layer(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.norm = nnx.RMSNorm(WIDTH, rngs=rngs)
            self.qkv = nnx.LinearGeneral(WIDTH, (3, HEADS, WIDTH // HEADS), use_bias=False, rngs=rngs)
            self.out = nnx.LinearGeneral((HEADS, WIDTH // HEADS), WIDTH, axis=(-2, -1), rngs=rngs)

        def __call__(self, x: Any, length: Any) -> Any:
            q, k, v = jnp.moveaxis(self.qkv(self.norm(x)), 2, 0)
            seen = jax.nn.dot_product_attention(
                turned(q),
                turned(k),
                v,
                is_causal=True,
                query_seq_lengths=length,
                key_value_seq_lengths=length,
                local_window_size=(2, 0),
            )
            return x + self.out(seen)

    class Model(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.embed = nnx.Embed(WORDS, WIDTH, rngs=rngs)
            self.layers = nnx.List([Layer(rngs) for _ in range(2)])
            self.drop = nnx.Dropout(0.1, rngs=rngs)

        def __call__(self, ids: Any, length: Any) -> Any:
            x = self.embed(ids)
            for layer in self.layers:
                x = self.drop(nnx.remat(type(layer).__call__)(layer, x, length))
            return self.embed.attend(x)

    model = Model(nnx.Rngs(0, dropout=1))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-2, eps=1e-3), wrt=nnx.Param)

    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        def loss(model: Any) -> Any:
            each = optax.softmax_cross_entropy_with_integer_labels(model(batch["ids"], batch["length"]), batch["next"])
            real = jnp.arange(LENGTH) < batch["length"][:, None]
            return jnp.mean(each, where=real)

        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return value

    batch = sentences() | {"length": 1 + whole(LENGTH, SAMPLES, seed=3)}
    return Case(
        step=step,
        state=(model, optimizer),
        batch=batch,
        jit=nnx.jit,
        after=in_place,
        narrow=True,
        call=lambda run, state, batch: run(*state, batch),
        options={"batch_argnums": 2},
    )


@case
def jax_two_experts_of_a_word_with_capacity_and_balance() -> Case:
    """Places in an expert by a running count over the sentence, words without one passed by, two losses beside."""
    experts, places = 4, 4

    def loss(params: Any, batch: Any) -> Any:
        x = params["embed"][batch["ids"]]
        logits = x @ params["router"]
        gates = jax.nn.softmax(logits)
        top, chosen = jax.lax.top_k(gates, 2)
        top = top / top.sum(-1, keepdims=True)
        hot = jax.nn.one_hot(chosen, experts, dtype=x.dtype)
        order = jnp.cumsum(hot.swapaxes(1, 2).reshape(-1, 2 * LENGTH, experts), 1).reshape(-1, 2, LENGTH, experts)
        place = (order.swapaxes(1, 2) - 1) * hot
        sent = hot[..., None] * jax.nn.one_hot(jnp.where(hot > 0, place, places), places, dtype=x.dtype)
        weight = (sent * top[..., None, None]).sum(2)
        inside = jnp.einsum("btec,btd->ebcd", (weight > 0) * 1.0, x).astype(x.dtype)
        made = jnp.einsum(
            "ebcf,efd->ebcd", jax.nn.silu(jnp.einsum("ebcd,edf->ebcf", inside, params["up"])), params["down"]
        )
        x = x + jnp.einsum("btec,ebcd->btd", weight, made)
        balance = experts * (hot[:, :, 0].mean(1) * gates.mean(1)).sum(-1).mean()
        drift = (jax.nn.logsumexp(logits, -1) ** 2).mean()
        return cross_entropy(x @ params["embed"].T, batch["next"]) + 0.01 * balance + 1e-3 * drift

    params = {
        "embed": drawn(WORDS, WIDTH, scale=0.5),
        "router": drawn(WIDTH, experts, seed=1),
        "up": drawn(experts, WIDTH, WIDTH, seed=2, scale=0.3),
        "down": drawn(experts, WIDTH, WIDTH, seed=3, scale=0.3),
    }
    return with_optimizer(adam(), loss, params, sentences())


@case
def equinox_experts_of_soft_slots() -> Case:
    """Every slot of an expert is a mean of all words of a sentence, and every word one of all slots."""

    class Block(eqx.Module):
        slots: Any
        experts: Any
        norm: Any
        head: Any
        embed: Any

        def __init__(self, key: Any) -> None:
            a, b, c, d = jax.random.split(key, 4)
            self.slots = jax.random.normal(a, (3, 2, WIDTH)) * 0.3
            self.experts = eqx.filter_vmap(lambda k: eqx.nn.MLP(WIDTH, WIDTH, WIDTH, 1, key=k))(jax.random.split(b, 3))
            self.norm = eqx.nn.LayerNorm(WIDTH)
            self.head = eqx.nn.Linear(WIDTH, WORDS, key=c)
            self.embed = eqx.nn.Embedding(WORDS, WIDTH, key=d)

        def __call__(self, ids: Any) -> Any:
            x = jax.vmap(self.embed)(ids)
            y = jax.vmap(self.norm)(x)
            logits = jnp.einsum("td,esd->tes", y, self.slots)
            inside = jnp.einsum("tes,td->esd", jax.nn.softmax(logits, 0), y)
            made = eqx.filter_vmap(lambda expert, rows: jax.vmap(expert)(rows))(self.experts, inside)
            back = jax.nn.softmax(logits.reshape(len(ids), -1), -1).reshape(logits.shape)
            return jax.vmap(self.head)(x + jnp.einsum("tes,esd->td", back, made))

    optimizer = adam()

    def step(state: Any, batch: Any) -> Any:
        model, opt_state = state

        @eqx.filter_value_and_grad
        def loss(model: Any) -> Any:
            return cross_entropy(eqx.filter_vmap(model)(batch["ids"]), batch["next"])

        value, grads = loss(model)
        updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
        return (eqx.apply_updates(model, updates), opt_state), value

    model = Block(jax.random.key(0))
    state = (model, optimizer.init(eqx.filter(model, eqx.is_inexact_array)))
    return Case(step=step, state=state, batch=sentences(), jit=eqx.filter_jit)


@case
def jax_exits_behind_every_layer() -> Case:
    """One head reads every layer; later layers count more, earlier ones join with the step, layers drop by chance."""

    def step(state: Any, batch: Any) -> Any:
        params, count, key = state
        key, now = jax.random.split(key)
        alive = jax.random.bernoulli(now, 1.0 - 0.1 * jnp.arange(LAYERS), (LAYERS,))
        open_now = jnp.arange(LAYERS) >= LAYERS - 1 - count

        def loss(params: Any) -> Any:
            def layer(x: Any, given: Any) -> Any:
                own, alive = given
                x = jax.lax.cond(alive, lambda x: x + jnp.tanh(x @ own["w"] + own["b"]), lambda x: x, x)
                return x, x

            _, outs = jax.lax.scan(layer, params["embed"][batch["ids"]], (params["layers"], alive))
            each = optax.softmax_cross_entropy_with_integer_labels(
                outs @ params["head"], jnp.broadcast_to(batch["next"], outs.shape[:-1])
            ).mean((1, 2))
            weight = open_now * (1.0 + jnp.arange(LAYERS))
            return (weight / weight.sum() * each).sum(), each

        (value, each), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return (sgd(params, grads), count + 1, key), (value, each)

    layers = {"w": drawn(LAYERS, WIDTH, WIDTH, scale=0.3), "b": jnp.zeros((LAYERS, WIDTH))}
    params = {"embed": drawn(WORDS, WIDTH), "layers": layers, "head": drawn(WIDTH, WORDS, seed=2)}
    return Case(step=step, state=(params, jnp.zeros((), jnp.int32), jax.random.key(0)), batch=sentences())
