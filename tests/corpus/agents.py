"""Steps of agents: time before samples, delayed and twin updates, models of the world, searches."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from tests.corpus.case import (
    FEATURES,
    LENGTH,
    SAMPLES,
    WIDTH,
    Case,
    adam,
    case,
    drawn,
    forward,
    mlp,
    sgd,
    whole,
    with_optimizer,
)

ACTIONS = 3


def log_of(logits: Any, actions: Any) -> Any:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], axis=-1)[..., 0]


def paths(length: int = LENGTH, samples: int = SAMPLES) -> dict[str, Any]:
    """Time first, as actors collect it."""
    return {
        "seen": drawn(length, samples, FEATURES, seed=1),
        "action": whole(ACTIONS, length, samples, seed=2),
        "reward": drawn(length, samples, seed=3),
        "done": whole(5, length, samples, seed=4) == 0,
        "old": -jnp.abs(drawn(length, samples, seed=5)),
    }


@case
def importance_weighted_actors_with_time_first() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        values = forward(params["value"], batch["seen"])[..., 0]
        logits = forward(params["policy"], batch["seen"])
        ratio = jnp.minimum(jnp.exp(log_of(logits, batch["action"]) - batch["old"]), 1.0)
        kept = 0.99 * (1 - batch["done"].astype(values.dtype))
        following = jnp.concatenate([values[1:], values[-1:]])
        delta = ratio * (batch["reward"] + kept * following - values)

        def back(later: Any, given: Any) -> Any:
            own, c, d = given
            later = own + d * c * later
            return later, later

        _, more = jax.lax.scan(back, jnp.zeros_like(values[0]), (delta, ratio, kept), reverse=True)
        wanted = jax.lax.stop_gradient(values + more)
        gain = jax.lax.stop_gradient(
            ratio * (batch["reward"] + kept * jnp.concatenate([wanted[1:], values[-1:]]) - values)
        )
        p = jax.nn.softmax(logits)
        entropy = -(p * jax.nn.log_softmax(logits)).sum(-1).mean()
        policy = -(log_of(logits, batch["action"]) * gain).mean()
        return policy + 0.5 * ((values - wanted) ** 2).mean() - 0.01 * entropy

    params = {"value": mlp(FEATURES, WIDTH, 1), "policy": mlp(FEATURES, WIDTH, ACTIONS, seed=4)}
    return with_optimizer(optax.rmsprop(1e-2, eps=0.1), loss, params, paths())


@case
def recurrent_policy_with_resets_and_a_carried_state() -> Case:
    """Observations have time first; what the network remembers has samples first."""

    def loss(params: Any, batch: Any) -> Any:
        def one(hidden: Any, given: Any) -> Any:
            seen, done = given
            hidden = jnp.where(done[:, None], 0.0, hidden)
            hidden = jnp.tanh(seen @ params["in"] + hidden @ params["own"])
            return hidden, hidden

        _, all_hidden = jax.lax.scan(one, batch["hidden"], (batch["seen"], batch["done"]))
        logits = all_hidden @ params["policy"]
        ratio = jnp.exp(log_of(logits, batch["action"]) - batch["old"])
        gain = batch["reward"]
        clipped = jnp.clip(ratio, 0.8, 1.2)
        return -jnp.minimum(ratio * gain, clipped * gain).mean()

    params = {
        "in": drawn(FEATURES, WIDTH, scale=0.4),
        "own": drawn(WIDTH, WIDTH, seed=1, scale=0.3),
        "policy": drawn(WIDTH, ACTIONS, seed=2, scale=0.3),
    }
    return with_optimizer(adam(), loss, params, {**paths(), "hidden": drawn(SAMPLES, WIDTH, seed=8)})


@case
def twin_critics_with_a_delayed_policy() -> Case:
    optimizer = adam()

    def step(state: Any, batch: Any) -> Any:
        actor, critic, actor_slow, critic_slow, actor_opt, critic_opt, count, key = state
        key, own = jax.random.split(key)
        noise = jnp.clip(0.2 * jax.random.normal(own, batch["action"].shape), -0.5, 0.5)

        def score(params: Any, seen: Any, action: Any) -> Any:
            return jnp.concatenate([forward(p, jnp.concatenate([seen, action], -1)) for p in params], -1)

        following = jnp.clip(jnp.tanh(forward(actor_slow, batch["next"])) + noise, -1, 1)
        target = batch["reward"] + 0.9 * score(critic_slow, batch["next"], following).min(-1)

        def judged(params: Any) -> Any:
            return ((score(params, batch["seen"], batch["action"]) - target[:, None]) ** 2).mean()

        critic_loss, grads = jax.value_and_grad(judged)(critic)
        updates, critic_opt = optimizer.update(grads, critic_opt)
        critic = optax.apply_updates(critic, updates)

        def acted(_: Any) -> Any:
            def value(params: Any) -> Any:
                return -score(critic[:1], batch["seen"], jnp.tanh(forward(params, batch["seen"]))).mean()

            updates, opt = optimizer.update(jax.grad(value)(actor), actor_opt)
            new = optax.apply_updates(actor, updates)
            return (
                new,
                opt,
                optax.incremental_update(new, actor_slow, 0.05),
                optax.incremental_update(critic, critic_slow, 0.05),
            )

        actor, actor_opt, actor_slow, critic_slow = jax.lax.cond(
            count % 2 == 0, acted, lambda _: (actor, actor_opt, actor_slow, critic_slow), None
        )
        return (actor, critic, actor_slow, critic_slow, actor_opt, critic_opt, count + 1, key), critic_loss

    actor = mlp(FEATURES, WIDTH, 2)
    critic = [mlp(FEATURES + 2, WIDTH, 1, seed=3), mlp(FEATURES + 2, WIDTH, 1, seed=6)]
    state = (
        actor,
        critic,
        actor,
        critic,
        optimizer.init(actor),
        optimizer.init(critic),
        jnp.int32(0),
        jax.random.key(0),
    )
    batch = {
        "seen": drawn(SAMPLES, FEATURES, seed=1),
        "next": drawn(SAMPLES, FEATURES, seed=2),
        "action": jnp.tanh(drawn(SAMPLES, 2, seed=3)),
        "reward": drawn(SAMPLES, seed=4),
    }
    return Case(step=step, state=state, batch=batch)


@case
def model_of_the_world_with_free_nats() -> Case:
    """Recurrent states drawn from classes, gradients straight through, divergences counted from one nat on."""

    def step(state: Any, batch: Any) -> Any:
        params, opt_state, key = state
        key, own = jax.random.split(key)

        def loss(p: Any) -> Any:
            def one(carry: Any, given: Any) -> Any:
                hidden, drawn_state = carry
                seen, action, key = given
                hidden = jnp.tanh(jnp.concatenate([drawn_state, action], -1) @ p["in"] + hidden @ p["own"])
                before = hidden @ p["before"]
                after = jnp.concatenate([hidden, seen], -1) @ p["after"]
                share = jax.nn.softmax(after)
                hot = jax.nn.one_hot(jax.random.categorical(key, after), 4, dtype=share.dtype)
                drawn_state = hot + share - jax.lax.stop_gradient(share)
                return (hidden, drawn_state), (hidden, drawn_state, before, after)

            seen, action = batch["seen"].swapaxes(0, 1), batch["action"].swapaxes(0, 1)
            start = (jnp.zeros((len(batch["seen"]), WIDTH), seen.dtype), jnp.zeros((len(batch["seen"]), 4), seen.dtype))
            _, (hidden, drawn_state, before, after) = jax.lax.scan(
                one, start, (seen, action, jax.random.split(own, LENGTH))
            )

            def apart(one: Any, other: Any) -> Any:
                gap = jax.nn.log_softmax(one) - jax.nn.log_softmax(other)
                return jnp.maximum((jax.nn.softmax(one) * gap).sum(-1).mean(), 0.1)

            still = jax.lax.stop_gradient
            shown = jnp.concatenate([hidden, drawn_state], -1) @ p["out"]
            error = ((shown - seen) ** 2).sum(-1).mean()
            return error + 0.5 * apart(still(after), before) + 0.1 * apart(after, still(before)), error

        (value, error), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, opt_state = adam().update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state, key), (value, error)

    params = {
        "in": drawn(6, WIDTH, scale=0.4),
        "own": drawn(WIDTH, WIDTH, seed=1, scale=0.3),
        "before": drawn(WIDTH, 4, seed=2),
        "after": drawn(WIDTH + FEATURES, 4, seed=3, scale=0.3),
        "out": drawn(WIDTH + 4, FEATURES, seed=4, scale=0.3),
    }
    batch = {"seen": drawn(SAMPLES, LENGTH, FEATURES, seed=1), "action": drawn(SAMPLES, LENGTH, 2, seed=2)}
    return Case(step=step, state=(params, adam().init(params), jax.random.key(0)), batch=batch)


@case
def unrolled_model_with_scaled_gradients() -> Case:
    def halved(x: Any) -> Any:
        return 0.5 * x + jax.lax.stop_gradient(0.5 * x)

    def loss(params: Any, batch: Any) -> Any:
        hidden = jnp.tanh(forward(params["see"], batch["seen"]))
        total = 0.0
        for t in range(3):
            share, value = forward(params["act"], hidden), forward(params["judge"], hidden)
            rows = optax.softmax_cross_entropy(share, batch["visits"][:, t])
            rows = rows + optax.softmax_cross_entropy(value, batch["returns"][:, t])
            total = total + rows * (1.0 if t == 0 else 1 / 3)
            hot = jax.nn.one_hot(batch["action"][:, t], ACTIONS, dtype=hidden.dtype)
            hidden = halved(jnp.tanh(forward(params["move"], jnp.concatenate([hidden, hot], -1))))
        return (batch["weight"] * total).mean()

    params = {
        "see": mlp(FEATURES, WIDTH),
        "act": mlp(WIDTH, ACTIONS, seed=1),
        "judge": mlp(WIDTH, 5, seed=2),
        "move": mlp(WIDTH + ACTIONS, WIDTH, seed=3),
    }
    batch = {
        "seen": drawn(SAMPLES, FEATURES, seed=1),
        "visits": jax.nn.softmax(drawn(SAMPLES, 3, ACTIONS, seed=2)),
        "returns": jax.nn.softmax(drawn(SAMPLES, 3, 5, seed=3)),
        "action": whole(ACTIONS, SAMPLES, 3, seed=4),
        "weight": jnp.abs(drawn(SAMPLES, seed=5)),
    }
    return with_optimizer(optax.chain(optax.clip_by_global_norm(5.0), adam()), loss, params, batch)


@case
def returns_as_distributions_projected() -> Case:
    atoms = 5

    def step(state: Any, batch: Any) -> Any:
        params, slow, opt_state, count = state
        places = jnp.linspace(-2.0, 2.0, atoms)

        def projected(reward: Any, share: Any) -> Any:
            moved = jnp.clip(reward + 0.9 * places, -2.0, 2.0)
            near = jnp.clip(1 - jnp.abs(moved[None] - places[:, None]), 0, 1)
            return near @ share

        def of(p: Any, seen: Any) -> Any:
            return forward(p, seen).reshape(len(seen), ACTIONS, atoms)

        best = (jax.nn.softmax(of(params, batch["next"])) * places).sum(-1).argmax(-1)
        rows = jnp.arange(len(best))
        wanted = jax.vmap(projected)(batch["reward"], jax.nn.softmax(of(slow, batch["next"]))[rows, best])

        def loss(p: Any) -> Any:
            own = jax.nn.log_softmax(of(p, batch["seen"])[rows, batch["action"]])
            each = -(wanted * own).sum(-1)
            return each.mean(), each

        (value, priorities), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, opt_state = adam().update(grads, opt_state)
        params = optax.apply_updates(params, updates)
        slow = optax.periodic_update(params, slow, count, 2)
        return (params, slow, opt_state, count + 1), (value, priorities)

    params = mlp(FEATURES, WIDTH, ACTIONS * atoms)
    batch = {
        "seen": drawn(SAMPLES, FEATURES, seed=1),
        "next": drawn(SAMPLES, FEATURES, seed=2),
        "action": whole(ACTIONS, SAMPLES, seed=3),
        "reward": drawn(SAMPLES, seed=4),
    }
    return Case(step=step, state=(params, params, adam().init(params), jnp.int32(0)), batch=batch)


@case
def jax_evolution_of_mirrored_directions() -> Case:
    from jax.flatten_util import ravel_pytree

    def step(state: Any, batch: Any) -> Any:
        params, key = state
        key, own = jax.random.split(key)
        flat, tree = ravel_pytree(params)
        ways = jax.random.normal(own, (4, flat.size), flat.dtype)

        def value(way: Any) -> Any:
            return ((forward(tree(flat + 0.1 * way), batch["x"]) - batch["y"]) ** 2).mean()

        gains = jax.vmap(value)(ways) - jax.vmap(value)(-ways)
        return (tree(flat - 0.05 * (gains @ ways) / (2 * 4 * 0.1)), key), gains.mean()

    batch = {"x": drawn(SAMPLES, FEATURES, seed=1), "y": drawn(SAMPLES, 1, seed=2)}
    return Case(step=step, state=(mlp(FEATURES, WIDTH, 1), jax.random.key(0)), batch=batch)


@case
def trajectories_read_as_sentences() -> Case:
    """Returns, observations and actions take turns in one sequence."""

    def loss(params: Any, batch: Any) -> Any:
        parts = [
            batch["left"][..., None] @ params["left"],
            batch["seen"] @ params["seen"],
            params["action"][batch["action"]],
        ]
        x = jnp.stack(parts, axis=2).reshape(len(batch["seen"]), 3 * LENGTH, WIDTH)
        x = x + jnp.repeat(params["time"][batch["time"]], 3, axis=1)
        q, k, v = jnp.split(x @ params["qkv"], 3, axis=-1)
        scores = jnp.where(jnp.tril(jnp.ones((3 * LENGTH, 3 * LENGTH), bool)), q @ k.swapaxes(1, 2), -1e9)
        x = x + jax.nn.softmax(scores / WIDTH**0.5) @ v
        logits = x.reshape(len(x), LENGTH, 3, WIDTH)[:, :, 1] @ params["out"]
        rows = optax.softmax_cross_entropy_with_integer_labels(logits, batch["action"])
        return (rows * batch["mask"]).sum() / jnp.maximum(batch["mask"].sum(), 1)

    params = {
        "left": drawn(1, WIDTH),
        "seen": drawn(FEATURES, WIDTH, seed=1),
        "action": drawn(ACTIONS, WIDTH, seed=2),
        "time": drawn(20, WIDTH, seed=3),
        "qkv": drawn(WIDTH, 3 * WIDTH, seed=4, scale=0.3),
        "out": drawn(WIDTH, ACTIONS, seed=5, scale=0.3),
    }
    batch = {
        "left": drawn(SAMPLES, LENGTH, seed=1),
        "seen": drawn(SAMPLES, LENGTH, FEATURES, seed=2),
        "action": whole(ACTIONS, SAMPLES, LENGTH, seed=3),
        "time": whole(20, SAMPLES, LENGTH, seed=4),
        "mask": whole(2, SAMPLES, LENGTH, seed=5).astype(jnp.float32),
    }
    return with_optimizer(adam(), loss, params, batch)


@case
def jax_sgd_over_a_buffer_by_scan() -> Case:
    """Many batches in one call, each drawn by a key from a buffer."""

    def step(state: Any, batch: Any) -> Any:
        def one(carry: Any, _: Any) -> Any:
            params, key = carry
            key, own = jax.random.split(key)
            rows = jax.random.randint(own, (4,), 0, SAMPLES)
            x, y = batch["x"][rows], batch["y"][rows]
            value, grads = jax.value_and_grad(lambda p: ((forward(p, x) - y) ** 2).mean())(params)
            return (sgd(params, grads, 0.05), key), value

        state, values = jax.lax.scan(one, state, None, length=3)
        return state, values.mean()

    batch = {"x": drawn(SAMPLES, FEATURES, seed=1), "y": drawn(SAMPLES, 1, seed=2)}
    return Case(step=step, state=(mlp(FEATURES, WIDTH, 1), jax.random.key(0)), batch=batch)
