"""Steps that take several gradients: adversaries, actors and critics, learners of learners."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from tests.corpus.case import (
    CLASSES,
    FEATURES,
    SAMPLES,
    WIDTH,
    Case,
    case,
    classified,
    cross_entropy,
    drawn,
    forward,
    mlp,
    whole,
)


def sgd(params: Any, grads: Any, rate: float = 0.1) -> Any:
    return jax.tree.map(lambda p, g: p - rate * g, params, grads)


@case
def generator_and_discriminator() -> Case:
    optimizer = optax.adam(1e-2, eps=1e-3)

    def step(state: Any, batch: Any) -> Any:
        def judged(d: Any, x: Any) -> Any:
            return forward(d, x)[:, 0]

        def d_loss(d: Any) -> Any:
            fake = forward(state["g"], batch["z"])
            return jax.nn.softplus(-judged(d, batch["x"])).mean() + jax.nn.softplus(judged(d, fake)).mean()

        d_value, d_grads = jax.value_and_grad(d_loss)(state["d"])
        updates, d_opt = optimizer.update(d_grads, state["d_opt"])
        d = optax.apply_updates(state["d"], updates)

        def g_loss(g: Any) -> Any:
            return jax.nn.softplus(-judged(d, forward(g, batch["z"]))).mean()

        g_value, g_grads = jax.value_and_grad(g_loss)(state["g"])
        updates, g_opt = optimizer.update(g_grads, state["g_opt"])
        g = optax.apply_updates(state["g"], updates)
        return {"g": g, "d": d, "g_opt": g_opt, "d_opt": d_opt}, (d_value, g_value)

    g, d = mlp(3, WIDTH, FEATURES), mlp(FEATURES, WIDTH, 1, seed=4)
    state = {"g": g, "d": d, "g_opt": optimizer.init(g), "d_opt": optimizer.init(d)}
    return Case(step=step, state=state, batch={"x": drawn(SAMPLES, FEATURES, seed=1), "z": drawn(SAMPLES, 3, seed=2)})


@case
def wasserstein_with_penalty() -> Case:
    def step(state: Any, batch: Any) -> Any:
        def c_loss(c: Any) -> Any:
            fake = forward(state["g"], batch["z"])
            mixed = batch["x"] * batch["mix"] + fake * (1 - batch["mix"])
            slope = jax.vmap(jax.grad(lambda x: forward(c, x)[0]))(mixed)
            norm = jnp.sqrt((slope**2).sum(-1) + 1e-6)
            return (forward(c, fake) - forward(c, batch["x"])).mean() + ((norm - 1) ** 2).mean()

        value, grads = jax.value_and_grad(c_loss)(state["c"])
        critic = sgd(state["c"], grads, 0.01)
        grads = jax.grad(lambda g: -forward(critic, forward(g, batch["z"])).mean())(state["g"])
        return {"g": sgd(state["g"], grads, 0.01), "c": critic}, value

    state = {"g": mlp(3, WIDTH, FEATURES), "c": mlp(FEATURES, WIDTH, 1, seed=4)}
    batch = {
        "x": drawn(SAMPLES, FEATURES, seed=1),
        "z": drawn(SAMPLES, 3, seed=2),
        "mix": jnp.abs(jnp.tanh(drawn(SAMPLES, 1, seed=3))),
    }
    return Case(step=step, state=state, batch=batch)


def transitions() -> Any:
    return {
        "obs": drawn(SAMPLES, FEATURES, seed=1),
        "action": whole(CLASSES, SAMPLES, seed=2),
        "reward": drawn(SAMPLES, seed=3),
        "next": drawn(SAMPLES, FEATURES, seed=4),
        "advantage": drawn(SAMPLES, seed=5),
        "logp": -jnp.abs(drawn(SAMPLES, seed=6)),
    }


@case
def actor_and_critic() -> Case:
    def step(state: Any, batch: Any) -> Any:
        def critic_loss(v: Any) -> Any:
            target = batch["reward"] + 0.9 * jax.lax.stop_gradient(forward(v, batch["next"])[:, 0])
            return ((forward(v, batch["obs"])[:, 0] - target) ** 2).mean()

        def actor_loss(p: Any) -> Any:
            logp = jax.nn.log_softmax(forward(p, batch["obs"]))
            own = jnp.take_along_axis(logp, batch["action"][:, None], 1)[:, 0]
            return -(own * batch["advantage"]).mean()

        v_value, v_grads = jax.value_and_grad(critic_loss)(state["critic"])
        p_value, p_grads = jax.value_and_grad(actor_loss)(state["actor"])
        return {"critic": sgd(state["critic"], v_grads), "actor": sgd(state["actor"], p_grads)}, v_value + p_value

    state = {"critic": mlp(FEATURES, WIDTH, 1), "actor": mlp(FEATURES, WIDTH, CLASSES, seed=3)}
    return Case(step=step, state=state, batch=transitions())


def ppo_loss(params: Any, batch: Any) -> Any:
    logp = jax.nn.log_softmax(forward(params["actor"], batch["obs"]))
    own = jnp.take_along_axis(logp, batch["action"][:, None], 1)[:, 0]
    ratio = jnp.exp(own - batch["logp"])
    gain = jnp.minimum(ratio * batch["advantage"], jnp.clip(ratio, 0.8, 1.2) * batch["advantage"]).mean()
    value = ((forward(params["critic"], batch["obs"])[:, 0] - batch["reward"]) ** 2).mean()
    return -gain + 0.5 * value + 0.01 * (logp * jnp.exp(logp)).sum(-1).mean()


def policy() -> Any:
    return {"critic": mlp(FEATURES, WIDTH, 1), "actor": mlp(FEATURES, WIDTH, CLASSES, seed=3)}


@case
def ppo_one_minibatch() -> Case:
    def step(params: Any, batch: Any) -> Any:
        loss, grads = jax.value_and_grad(ppo_loss)(params, batch)
        return sgd(params, grads), loss

    return Case(step=step, state=policy(), batch=transitions())


@case
def ppo_epochs_and_minibatches() -> Case:
    def step(state: Any, batch: Any) -> Any:
        def epoch(state: Any, _: Any) -> Any:
            params, key = state
            key, own = jax.random.split(key)
            order = jax.random.permutation(own, SAMPLES)
            parts = jax.tree.map(lambda x: x[order].reshape(4, -1, *x.shape[1:]), batch)

            def one(params: Any, part: Any) -> Any:
                loss, grads = jax.value_and_grad(ppo_loss)(params, part)
                return sgd(params, grads), loss

            params, losses = jax.lax.scan(one, params, parts)
            return (params, key), losses.mean()

        state, losses = jax.lax.scan(epoch, state, None, length=2)
        return state, losses

    return Case(step=step, state=(policy(), jax.random.key(0)), batch=transitions())


@case
def ppo_normalized_advantages() -> Case:
    def step(params: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            own = batch["advantage"]
            own = (own - own.mean()) / (own.std() + 1e-8)
            return ppo_loss(params, batch | {"advantage": own})

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads), value

    return Case(step=step, state=policy(), batch=transitions())


@case
def q_learning_with_target() -> Case:
    optimizer = optax.adam(1e-2, eps=1e-3)

    def step(state: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            q = jnp.take_along_axis(forward(params, batch["obs"]), batch["action"][:, None], 1)[:, 0]
            target = batch["reward"] + 0.99 * forward(state["target"], batch["next"]).max(-1)
            return optax.huber_loss(q, target).mean()

        value, grads = jax.value_and_grad(loss)(state["params"])
        updates, opt = optimizer.update(grads, state["opt"])
        params = optax.apply_updates(state["params"], updates)
        target = optax.periodic_update(params, state["target"], state["steps"], 2)
        return {"params": params, "target": target, "opt": opt, "steps": state["steps"] + 1}, value

    params = mlp(FEATURES, WIDTH, CLASSES)
    state = {
        "params": params,
        "target": jax.tree.map(jnp.copy, params),
        "opt": optimizer.init(params),
        "steps": jnp.int32(0),
    }
    return Case(step=step, state=state, batch=transitions())


@case
def soft_actor_critic() -> Case:
    def step(state: Any, batch: Any) -> Any:
        key, own = jax.random.split(state["key"])
        noise = jax.random.normal(own, (SAMPLES, 2))
        mean = forward(state["actor"], batch["next"])
        after = jnp.tanh(mean + noise)
        target = batch["reward"][:, None] + 0.9 * forward(state["target"], jnp.concatenate([batch["next"], after], 1))

        def critic_loss(c: Any) -> Any:
            return ((forward(c, jnp.concatenate([batch["obs"], batch["done"]], 1)) - target) ** 2).mean()

        c_value, c_grads = jax.value_and_grad(critic_loss)(state["critic"])
        critic = sgd(state["critic"], c_grads, 0.01)

        def actor_loss(a: Any) -> Any:
            action = jnp.tanh(forward(a, batch["obs"]) + noise)
            return -forward(critic, jnp.concatenate([batch["obs"], action], 1)).mean()

        a_grads = jax.grad(actor_loss)(state["actor"])
        return {
            "critic": critic,
            "actor": sgd(state["actor"], a_grads, 0.01),
            "key": key,
            "target": optax.incremental_update(critic, state["target"], 0.05),
        }, c_value

    critic = mlp(FEATURES + 2, WIDTH, 1)
    state = {
        "critic": critic,
        "target": jax.tree.map(jnp.copy, critic),
        "actor": mlp(FEATURES, WIDTH, 2, seed=3),
        "key": jax.random.key(0),
    }
    return Case(step=step, state=state, batch=transitions() | {"done": drawn(SAMPLES, 2, seed=8)})


@case
def learning_to_adapt() -> Case:
    def step(params: Any, batch: Any) -> Any:
        def adapted(x: Any, y: Any) -> Any:
            def outer(params: Any) -> Any:
                inner = jax.grad(lambda p: ((forward(p, x[:4]) - y[:4]) ** 2).mean())(params)
                return ((forward(sgd(params, inner, 0.05), x[4:]) - y[4:]) ** 2).mean()

            return outer

        def loss(params: Any) -> Any:
            return jax.vmap(lambda x, y: adapted(x, y)(params))(batch["x"], batch["y"]).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads, 0.05), value

    batch = {"x": drawn(SAMPLES, 8, FEATURES, seed=1), "y": drawn(SAMPLES, 8, 1, seed=2)}
    return Case(step=step, state=mlp(FEATURES, WIDTH, 1), batch=batch)


@case
def adversarial_training() -> Case:
    def step(params: Any, batch: Any) -> Any:
        def attack(x: Any) -> Any:
            return cross_entropy(forward(params, x), batch["y"])

        worse = batch["x"] + 0.05 * jnp.sign(jax.grad(attack)(batch["x"]))
        loss, grads = jax.value_and_grad(lambda p: cross_entropy(forward(p, worse), batch["y"]))(params)
        return sgd(params, grads), loss

    return Case(step=step, state=mlp(FEATURES, WIDTH, CLASSES), batch=classified())


@case
def diffusion_with_average_weights() -> Case:
    optimizer = optax.adam(1e-2, eps=1e-3)

    def step(state: Any, batch: Any) -> Any:
        key, when, noise = jax.random.split(state["key"], 3)
        x = batch["x"]
        t = jax.random.uniform(when, (x.shape[0], 1))
        drawn_noise = jax.random.normal(noise, x.shape)
        noisy = jnp.cos(t) * x + jnp.sin(t) * drawn_noise

        def loss(p: Any) -> Any:
            return ((forward(p, jnp.concatenate([noisy, t], 1)) - drawn_noise) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(state["params"])
        updates, opt = optimizer.update(grads, state["opt"])
        params = optax.apply_updates(state["params"], updates)
        return {
            "params": params,
            "opt": opt,
            "key": key,
            "ema": optax.incremental_update(params, state["ema"], 0.01),
        }, value

    params = mlp(FEATURES + 1, WIDTH, FEATURES)
    state = {
        "params": params,
        "ema": jax.tree.map(jnp.copy, params),
        "opt": optimizer.init(params),
        "key": jax.random.key(0),
    }
    return Case(step=step, state=state, batch=classified())


@case
def self_distillation_with_momentum() -> Case:
    def step(state: Any, batch: Any) -> Any:
        teacher = jax.nn.softmax((forward(state["teacher"], batch["x"]) - state["center"]) / 0.1)

        def loss(p: Any) -> Any:
            student = jax.nn.log_softmax(forward(p, batch["z"]))
            return -(jax.lax.stop_gradient(teacher) * student).sum(-1).mean()

        value, grads = jax.value_and_grad(loss)(state["student"])
        student = sgd(state["student"], grads)
        center = 0.9 * state["center"] + 0.1 * forward(state["teacher"], batch["x"]).mean(0)
        return {
            "student": student,
            "teacher": optax.incremental_update(student, state["teacher"], 0.01),
            "center": center,
        }, value

    params = mlp(FEATURES, WIDTH, CLASSES)
    state = {"student": params, "teacher": jax.tree.map(jnp.copy, params), "center": jnp.zeros(CLASSES)}
    batch = {"x": drawn(SAMPLES, FEATURES, seed=1), "z": drawn(SAMPLES, FEATURES, seed=2)}
    return Case(step=step, state=state, batch=batch)
