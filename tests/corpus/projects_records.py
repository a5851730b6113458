"""Small projects with graphs, tables, functions and series, each step a whole one as its authors write it."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from tests.corpus.case import (
    CLASSES,
    FEATURES,
    SAMPLES,
    WIDTH,
    WORDS,
    Case,
    adam,
    case,
    classified,
    drawn,
    forward,
    mlp,
    whole,
)

DIM = 8


@case
def equinox_attention_between_nodes_of_padded_graphs() -> Case:
    """GAT over dense padded graphs; only nodes that are there count."""

    class Layer(eqx.Module):
        proj: eqx.nn.Linear
        source: jax.Array
        target: jax.Array
        norm: eqx.nn.LayerNorm

        def __init__(self, size: int, key: Any) -> None:
            one, two, three = jax.random.split(key, 3)
            self.proj = eqx.nn.Linear(size, WIDTH, use_bias=False, key=one)
            self.source, self.target = jax.random.normal(two, (WIDTH,)), jax.random.normal(three, (WIDTH,))
            self.norm = eqx.nn.LayerNorm(WIDTH)

        def __call__(self, x: Any, edges: Any) -> Any:
            h = jax.vmap(self.proj)(x)
            scores = jax.nn.leaky_relu((h @ self.source)[:, None] + (h @ self.target)[None], 0.2)
            weights = jax.nn.softmax(jnp.where(edges, scores, -1e9), -1)
            return jax.vmap(self.norm)(jax.nn.elu(jnp.where(edges.any(-1, keepdims=True), weights @ h, 0.0)))

    class Graphs(eqx.Module):
        layers: list[Layer]
        head: eqx.nn.Linear

        def __init__(self, key: Any) -> None:
            keys = jax.random.split(key, 3)
            self.layers = [Layer(FEATURES, keys[0]), Layer(WIDTH, keys[1])]
            self.head = eqx.nn.Linear(WIDTH, CLASSES, key=keys[2])

        def __call__(self, graph: Any) -> Any:
            there = graph["there"]
            edges = (graph["edges"] | jnp.eye(there.shape[0], dtype=bool)) & there[None] & there[:, None]
            x = graph["x"]
            for layer in self.layers:
                x = layer(x, edges)
            return jax.vmap(self.head)(x)

    transform = optax.chain(optax.clip_by_global_norm(1.0), adam())

    def loss_fn(model: Any, batch: Any) -> Any:
        logits = jax.vmap(model)({name: batch[name] for name in ("x", "edges", "there")})
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
        count = batch["there"].sum()
        right = (batch["there"] & (logits.argmax(-1) == batch["y"])).sum()
        return jnp.where(batch["there"], losses, 0.0).sum() / count, (right, count)

    @eqx.filter_jit
    def step(state: Any, batch: Any) -> Any:
        model, opt_state = state
        (loss, counts), grads = eqx.filter_value_and_grad(loss_fn, has_aux=True)(model, batch)
        updates, opt_state = transform.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
        return (eqx.apply_updates(model, updates), opt_state), loss, counts

    model = Graphs(jax.random.key(0))
    state = (model, transform.init(eqx.filter(model, eqx.is_inexact_array)))
    nodes = 5
    edges = np.random.RandomState(3).rand(SAMPLES, nodes, nodes) < 0.4
    batch = {
        "x": drawn(SAMPLES, nodes, FEATURES, seed=1),
        "edges": jnp.asarray(edges | edges.transpose(0, 2, 1)),
        "there": jnp.arange(nodes)[None] < 1 + whole(nodes, SAMPLES, seed=4)[:, None],
        "y": whole(CLASSES, SAMPLES, nodes, seed=5),
    }
    return Case(step=step, state=state, batch=batch, jit=lambda one: one)


@case
def jax_queries_and_items_of_two_towers_with_corrected_negatives() -> Case:
    """Retrieval: tables of ids in bags, negatives from the batch with the logarithm of how often they are drawn."""

    def tower(params: Any, ids: Any, dense: Any) -> Any:
        bag = params["table"][ids].mean(1)
        out = forward(params["net"], jnp.concatenate([bag, dense], -1))
        return out / jnp.linalg.norm(out, axis=-1, keepdims=True)

    def loss_fn(params: Any, batch: Any) -> Any:
        queries = tower(params["query"], batch["words"], batch["who"])
        items = tower(params["item"], batch["tags"], batch["what"])
        logits = queries @ items.T * jnp.exp(params["scale"]) - batch["often"][None]
        same = (batch["item"][:, None] == batch["item"][None]) & ~jnp.eye(logits.shape[0], dtype=bool)
        logits = jnp.where(same, -1e9, logits)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.arange(logits.shape[0]))
        found = (logits.argmax(-1) == jnp.arange(logits.shape[0])).mean()
        return (losses * batch["weight"]).sum() / batch["weight"].sum(), found

    tables = optax.multi_transform(
        {"table": optax.adagrad(0.1), "rest": adam()},
        lambda params: jax.tree_util.tree_map_with_path(
            lambda path, _: "table" if "table" in jax.tree_util.keystr(path) else "rest", params
        ),
    )

    def step(state: Any, batch: Any) -> Any:
        params, opt = state
        (loss, found), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, batch)
        updates, opt = tables.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), {"loss": loss, "found": found}

    def fresh(seed: int) -> Any:
        return {"table": drawn(WORDS, DIM, seed=seed), "net": mlp(DIM + FEATURES, WIDTH, WIDTH, seed=seed)}

    params = {"query": fresh(0), "item": fresh(9), "scale": jnp.asarray(1.0)}
    batch = {
        "words": whole(WORDS, SAMPLES, 3, seed=1),
        "tags": whole(WORDS, SAMPLES, 2, seed=2),
        "who": drawn(SAMPLES, FEATURES, seed=3),
        "what": drawn(SAMPLES, FEATURES, seed=4),
        "item": whole(10, SAMPLES, seed=5),
        "often": jnp.log(0.1 + jnp.abs(drawn(SAMPLES, seed=6))),
        "weight": 1.0 + whole(3, SAMPLES, seed=7).astype(jnp.float32),
    }
    return Case(step=step, state=(params, tables.init(params)), batch=batch)


@case
def jax_critics_kept_low_on_drawn_actions_with_a_learned_weight() -> Case:
    """Conservative Q-learning: two critics, a policy, a temperature and a multiplier, each with its own update."""
    actions = 2
    transform = adam(3e-3)

    def acted(policy: Any, states: Any, key: Any) -> Any:
        mean, spread = jnp.split(forward(policy, states), 2, -1)
        spread = jnp.clip(spread, -5, 2)
        noise = jax.random.normal(key, mean.shape, mean.dtype)
        action = jnp.tanh(mean + jnp.exp(spread) * noise)
        logp = (-0.5 * noise**2 - spread - 0.919).sum(-1) - jnp.log(1 - action**2 + 1e-6).sum(-1)
        return action, logp

    def valued(critic: Any, states: Any, action: Any) -> Any:
        return forward(critic, jnp.concatenate([states, action], -1))[..., 0]

    def step(state: Any, batch: Any) -> Any:
        key, one, two, three = jax.random.split(state["key"], 4)
        params, target = state["params"], state["target"]
        ahead, logp = acted(params["policy"], batch["after"], one)
        value = jnp.minimum(*(valued(critic, batch["after"], ahead) for critic in target))
        wanted = batch["reward"] + 0.99 * (1 - batch["ended"]) * (value - jnp.exp(params["heat"]) * logp)

        def critics_loss(critics: Any, log_weight: Any) -> Any:
            drawn_actions = jax.random.uniform(two, (4, batch["state"].shape[0], actions), minval=-1, maxval=1)
            loss = gap = 0.0
            for critic in critics:
                held = valued(critic, batch["state"], batch["action"])
                others = jax.vmap(lambda a, critic=critic: valued(critic, batch["state"], a))(drawn_actions)
                high = (jax.nn.logsumexp(others, 0) - held).mean() - 1.0
                loss = loss + ((held - wanted) ** 2).mean() + jnp.exp(log_weight) * high
                gap = gap + high
            return loss, gap

        (loss, gap), grads = jax.value_and_grad(critics_loss, has_aux=True)(params["critics"], params["weight"])

        def policy_loss(policy: Any) -> Any:
            action, logp = acted(policy, batch["state"], three)
            low = jnp.minimum(*(valued(critic, batch["state"], action) for critic in params["critics"]))
            return (jnp.exp(params["heat"]) * logp - low).mean(), logp.mean()

        (_, mean_logp), policy_grads = jax.value_and_grad(policy_loss, has_aux=True)(params["policy"])
        heat_grad = jax.grad(lambda heat: -jnp.exp(heat) * lax.stop_gradient(mean_logp - actions))(params["heat"])
        weight_grad = jax.grad(lambda weight: -jnp.exp(weight) * lax.stop_gradient(gap))(params["weight"])
        grads = {"critics": grads, "policy": policy_grads, "heat": heat_grad, "weight": weight_grad}
        updates, opt = transform.update(grads, state["opt"])
        params = optax.apply_updates(params, updates)
        target = optax.incremental_update(params["critics"], target, 0.05)
        return {"params": params, "target": target, "opt": opt, "key": key}, {"loss": loss, "gap": gap}

    critics = [mlp(FEATURES + actions, WIDTH, 1, seed=seed) for seed in (1, 5)]
    params = {
        "critics": critics,
        "policy": mlp(FEATURES, WIDTH, 2 * actions, seed=9),
        "heat": jnp.asarray(0.0),
        "weight": jnp.asarray(0.0),
    }
    target = jax.tree.map(jnp.copy, critics)
    state = {"params": params, "target": target, "opt": transform.init(params), "key": jax.random.key(0)}
    batch = {
        "state": drawn(SAMPLES, FEATURES, seed=1),
        "action": jnp.tanh(drawn(SAMPLES, actions, seed=2)),
        "reward": drawn(SAMPLES, seed=3),
        "after": drawn(SAMPLES, FEATURES, seed=4),
        "ended": whole(2, SAMPLES, seed=5).astype(jnp.float32),
    }
    return Case(step=step, state=state, batch=batch)


@case
def jax_functions_guessed_from_points_of_drawn_number() -> Case:
    """An attentive neural process: context and targets by a mask drawn in the step, a latent of each function."""

    def summed(params: Any, x: Any, y: Any, mask: Any) -> Any:
        h = forward(params, jnp.concatenate([x, y], -1)) * mask[..., None]
        return h.sum(1) / mask.sum(1, keepdims=True)

    def normal(h: Any) -> Any:
        mean, spread = jnp.split(h, 2, -1)
        return mean, 0.1 + 0.9 * jax.nn.sigmoid(spread)

    def loss_fn(params: Any, batch: Any, key: Any) -> Any:
        x, y = batch["x"], batch["y"]
        count, noise = jax.random.split(key)
        known = 1 + jax.random.randint(count, (), 0, x.shape[1] - 1)
        mask = jnp.broadcast_to((jnp.arange(x.shape[1]) < known).astype(x.dtype), x.shape[:2])
        mean0, spread0 = normal(summed(params["latent"], x, y, mask))
        mean1, spread1 = normal(summed(params["latent"], x, y, jnp.ones_like(mask)))
        z = mean1 + spread1 * jax.random.normal(noise, mean1.shape, mean1.dtype)
        keys, values = x @ params["key"], forward(params["value"], jnp.concatenate([x, y], -1))
        scores = jnp.where(mask[:, None] > 0, jnp.einsum("bqd,bkd->bqk", x @ params["query"], keys), -1e9)
        read = jax.nn.softmax(scores) @ values
        given = jnp.concatenate([x, read, jnp.broadcast_to(z[:, None], (*x.shape[:2], z.shape[-1]))], -1)
        mean, spread = normal(forward(params["out"], given))
        likely = -0.5 * ((y - mean) / spread) ** 2 - jnp.log(spread)
        gap = jnp.log(spread0 / spread1) + (spread1**2 + (mean1 - mean0) ** 2) / (2 * spread0**2) - 0.5
        return -likely.sum((1, 2)).mean() + gap.sum(-1).mean()

    optimizer = adam()

    def step(state: Any, batch: Any) -> Any:
        params, opt, key = state
        key, own = jax.random.split(key)
        loss, grads = jax.value_and_grad(loss_fn)(params, batch, own)
        updates, opt = optimizer.update(grads, opt)
        return (optax.apply_updates(params, updates), opt, key), loss

    params = {
        "latent": mlp(3, WIDTH, 8),
        "value": mlp(3, WIDTH, 4, seed=1),
        "out": mlp(2 + 4 + 4, WIDTH, 2, seed=2),
        "key": drawn(2, 4, seed=3),
        "query": drawn(2, 4, seed=4),
    }
    batch = {"x": drawn(SAMPLES, 7, 2, seed=5), "y": drawn(SAMPLES, 7, 1, seed=6)}
    return Case(step=step, state=(params, optimizer.init(params), jax.random.key(0)), batch=batch)


@case
def jax_answers_scored_by_python_in_the_step() -> Case:
    """A policy gradient whose rewards a function of the host gives, by a callback that returns them."""

    def scored(ids: Any) -> Any:
        return (np.asarray(ids).sum(-1) % 5).astype(np.float32)

    def step(state: Any, batch: Any) -> Any:
        params, opt, key = state
        key, own = jax.random.split(key)
        ids = jax.random.categorical(own, forward(params, batch["x"])[:, None], -1, shape=(SAMPLES, 3))
        rewards = jax.pure_callback(scored, jax.ShapeDtypeStruct((SAMPLES,), jnp.float32), ids)

        def loss(params: Any) -> Any:
            logp = jax.nn.log_softmax(forward(params, batch["x"]))
            return -(jnp.take_along_axis(logp, ids, 1).sum(-1) * (rewards - rewards.mean())).mean()

        value, grads = jax.value_and_grad(loss)(params)
        updates, opt = optimizer.update(grads, opt)
        return (optax.apply_updates(params, updates), opt, key), value, rewards.mean()

    params, optimizer = mlp(FEATURES, WIDTH, CLASSES), adam()
    return Case(step=step, state=(params, optimizer.init(params), jax.random.key(0)), batch=classified())


@case
def equinox_series_normed_by_themselves_with_quantiles_and_truncated_steps() -> Case:
    """Forecasts of quantiles: each series normed by its own past, a recurrence over it, covariates that are known."""

    class Forecast(eqx.Module):
        cell: eqx.nn.LSTMCell
        gates: eqx.nn.Linear
        head: eqx.nn.MLP
        levels: tuple[float, ...] = eqx.field(static=True)

        def __init__(self, key: Any) -> None:
            one, two, three = jax.random.split(key, 3)
            self.cell = eqx.nn.LSTMCell(1 + 2, WIDTH, key=one)
            self.gates = eqx.nn.Linear(2, 2, key=two)
            self.head = eqx.nn.MLP(WIDTH + 4, 9, WIDTH, 1, activation=jax.nn.elu, key=three)
            self.levels = (0.1, 0.5, 0.9)

        def __call__(self, past: Any, known: Any, ahead: Any) -> Any:
            mean, spread = past.mean(), past.std() + 1e-3

            def one(carry: Any, now: Any) -> Any:
                return self.cell(now, carry), None

            given = jnp.concatenate([((past - mean) / spread)[:, None], known], -1)
            start = (jnp.zeros(WIDTH, past.dtype), jnp.zeros(WIDTH, past.dtype))
            (h, _), _ = lax.scan(one, start, given)
            gated = jax.nn.sigmoid(jax.vmap(self.gates)(ahead)) * ahead
            said = self.head(jnp.concatenate([h, gated.reshape(-1)[:4]])).reshape(3, 3)
            return jnp.sort(said, -1) * spread + mean

    def loss_fn(model: Any, batch: Any) -> Any:
        said = jax.vmap(model)(batch["past"], batch["known"], batch["ahead"])
        gap = batch["future"][..., None] - said
        levels = jnp.asarray(model.levels, gap.dtype)
        losses = jnp.maximum(levels * gap, (levels - 1) * gap).sum(-1)
        weights = batch["seen"] / batch["seen"].sum()
        covered = ((gap[..., 0] > 0) & (gap[..., 2] < 0)).mean(dtype=gap.dtype)
        return (losses.mean(-1) * weights).sum(), covered

    transform = optax.chain(optax.adaptive_grad_clip(0.1), optax.nadam(1e-2, eps=1e-3))

    def step(state: Any, batch: Any) -> Any:
        model, opt_state = state
        (loss, covered), grads = eqx.filter_value_and_grad(loss_fn, has_aux=True)(model, batch)
        updates, opt_state = transform.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
        return (eqx.apply_updates(model, updates), opt_state), loss, covered

    model = Forecast(jax.random.key(0))
    state = (model, transform.init(eqx.filter(model, eqx.is_inexact_array)))
    batch = {
        "past": drawn(SAMPLES, 8, seed=1, scale=3.0),
        "known": drawn(SAMPLES, 8, 2, seed=2),
        "ahead": drawn(SAMPLES, 3, 2, seed=3),
        "future": drawn(SAMPLES, 3, seed=4),
        "seen": 1.0 + whole(4, SAMPLES, seed=5).astype(jnp.float32),
    }
    return Case(step=step, state=state, batch=batch, jit=eqx.filter_jit)
