"""Steps that train language models on rewards, preferences and teachers, as recent papers post them."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx

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
    with_optimizer,
)

GROUP = 4


def word_model(seed: int = 0) -> dict[str, Any]:
    return {"embed": drawn(WORDS, WIDTH, seed=seed), "body": mlp(WIDTH, WIDTH, WORDS, seed=seed + 1)}


def log_probabilities(params: Any, ids: Any) -> Any:
    """Of each word behind the first, given all before it on average."""
    seen = params["embed"][ids[:, :-1]]
    before = jnp.cumsum(seen, 1) / jnp.arange(1, ids.shape[1], dtype=seen.dtype)[:, None]
    logits = forward(params["body"], before)
    return jnp.take_along_axis(jax.nn.log_softmax(logits), ids[:, 1:, None], -1)[..., 0]


def answers() -> dict[str, Any]:
    lengths = 2 + whole(LENGTH - 2, SAMPLES, seed=5)
    return {
        "ids": whole(WORDS, SAMPLES, LENGTH, seed=1),
        "mask": (jnp.arange(LENGTH - 1) < lengths[:, None]) * 1.0,
        "old": drawn(SAMPLES, LENGTH - 1, seed=3, scale=0.1) - 2.0,
        "reward": drawn(SAMPLES, seed=2),
        "group": jnp.arange(SAMPLES, dtype=jnp.int32) // GROUP,
    }


@case
def jax_decoupled_clips_over_all_words_of_all_answers() -> Case:
    """The upper clip is wider, words of all answers count alike, cut answers are left out."""

    def loss(params: Any, batch: Any) -> Any:
        rewards = batch["reward"].reshape(-1, GROUP)
        advantage = ((rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, keepdims=True) + 1e-4)).reshape(-1, 1)
        ratio = jnp.exp(log_probabilities(params, batch["ids"]) - batch["old"])
        gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.28) * advantage)
        mask = batch["mask"] * (batch["mask"].sum(1, keepdims=True) < LENGTH - 1)
        return -(gain * mask).sum() / jnp.maximum(mask.sum(), 1)

    return with_optimizer(adam(), loss, word_model(), answers())


@case
def jax_ratios_of_whole_answers_with_reported_clips() -> Case:
    """One ratio an answer, from the mean of its words; the share that is clipped and entropies are reported."""

    def loss(params: Any, batch: Any) -> Any:
        new, mask = log_probabilities(params, batch["ids"]), batch["mask"]
        ratio = jnp.exp(((new - batch["old"]) * mask).sum(1) / mask.sum(1))
        advantage = (
            batch["reward"] - jax.ops.segment_sum(batch["reward"], batch["group"], SAMPLES)[batch["group"]] / GROUP
        )
        clipped = jnp.clip(ratio, 0.97, 1.04)
        value = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
        return value, {
            "clipped": (ratio != clipped).mean(dtype=ratio.dtype),
            "kl": ((batch["old"] - new) * mask).sum() / mask.sum(),
            "longest": mask.sum(1).max(),
        }

    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        (value, aux), grads = jax.value_and_grad(loss, has_aux=True)(params, batch)
        updates, opt_state = adam().update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state), (value, aux, optax.global_norm(grads))

    params = word_model()
    return Case(step=step, state=(params, adam().init(params)), batch=answers())


@case
def jax_answers_liked_or_not_against_a_common_baseline() -> Case:
    """Each answer is good or bad; its gain is measured from the mean divergence of the batch, which is no gradient."""

    def loss(params: Any, reference: Any, batch: Any) -> Any:
        def gain(ids: Any) -> Any:
            return ((log_probabilities(params, ids) - log_probabilities(reference, ids)) * batch["mask"]).sum(1)

        baseline = jax.lax.stop_gradient(jnp.maximum(gain(batch["other"]).mean(), 0.0))
        own = gain(batch["ids"])
        good, bad = jax.nn.sigmoid(own - baseline), jax.nn.sigmoid(baseline - own)
        return jnp.where(batch["liked"], 1.0 - good, 1.3 * (1.0 - bad)).mean()

    def step(state: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(state["params"], state["reference"], batch)
        return {"params": sgd(state["params"], grads), "reference": state["reference"]}, value

    batch = answers() | {"other": whole(WORDS, SAMPLES, LENGTH, seed=7), "liked": whole(2, SAMPLES, seed=8) > 0}
    return Case(step=step, state={"params": word_model(), "reference": word_model(3)}, batch=batch)


@case
def jax_preferences_by_length_with_a_margin_and_a_language_loss() -> Case:
    """No reference; chosen and rejected answers in one forward behind each other, told apart by their halves."""

    def loss(params: Any, batch: Any) -> Any:
        both = jnp.concatenate([batch["chosen"], batch["rejected"]], 1).reshape(-1, LENGTH)
        score = log_probabilities(params, both).mean(1).reshape(-1, 2)
        margin = 2.0 * (score[:, 0] - score[:, 1]) - 0.5
        return -jax.nn.log_sigmoid(margin).mean() - 0.1 * score[:, 0].mean()

    batch = {"chosen": whole(WORDS, SAMPLES, LENGTH, seed=1), "rejected": whole(WORDS, SAMPLES, LENGTH, seed=2)}
    return with_optimizer(adam(), loss, word_model(), batch)


@case
def nnx_student_of_a_frozen_teacher_by_its_top_words() -> Case:
    """The teacher is an argument that comes back unchanged; the student follows its first words and the labels."""

    class Model(nnx.Module):
        def __init__(self, width: int, rngs: Any) -> None:
            self.embed = nnx.Embed(WORDS, width, rngs=rngs)
            self.norm = nnx.RMSNorm(width, rngs=rngs)
            self.mix = nnx.MultiHeadAttention(2, width, decode=False, rngs=rngs)
            self.head = nnx.Linear(width, WORDS, use_bias=False, rngs=rngs)

        def __call__(self, ids: Any) -> Any:
            x = self.embed(ids)
            x = x + self.mix(self.norm(x), mask=nnx.make_causal_mask(ids))
            return self.head(x)

    student, teacher = Model(WIDTH, nnx.Rngs(0)), Model(2 * WIDTH, nnx.Rngs(1))
    optimizer = nnx.Optimizer(student, optax.adamw(1e-2, eps=1e-3), wrt=nnx.Param)

    def step(student: Any, optimizer: Any, teacher: Any, batch: Any) -> Any:
        logits = jax.lax.stop_gradient(teacher(batch["ids"]))
        top, places = jax.lax.top_k(logits, 4)

        def loss(student: Any) -> Any:
            own = student(batch["ids"])
            near = jnp.take_along_axis(jax.nn.log_softmax(own / 2.0), places, -1)
            soft = -(jax.nn.softmax(top / 2.0) * near).sum(-1).mean()
            return 4.0 * soft + cross_entropy(own, batch["next"]), (own.argmax(-1) == batch["next"]).mean(
                dtype=own.dtype
            )

        (value, right), grads = nnx.value_and_grad(loss, has_aux=True)(student)
        optimizer.update(student, grads)
        return value, right

    return Case(
        step=step,
        state=(student, optimizer, teacher),
        batch=sentences(),
        jit=nnx.jit,
        after=in_place,
        narrow=True,
        call=lambda run, state, batch: run(*state, batch),
        options={"batch_argnums": 3},
    )


@case
def linen_rewards_of_ranked_answers_kept_near_zero() -> Case:
    """Four answers to a prompt by rank; every pair of them is a comparison, and rewards are centred by a penalty."""

    class Reward(nn.Module):
        @nn.compact
        def __call__(self, ids: Any, length: Any) -> Any:
            x = nn.Embed(WORDS, WIDTH)(ids)
            x = nn.RNN(nn.GRUCell(WIDTH))(x)
            last = jnp.take_along_axis(x, (length - 1)[..., None, None], -2)[..., 0, :]
            return nn.Dense(1)(nn.tanh(last))[..., 0]

    model = Reward()
    first, second = jnp.triu_indices(GROUP, 1)
    params = model.init(jax.random.key(0), jnp.zeros((1, LENGTH), int), jnp.ones((1,), int))

    def loss(params: Any, batch: Any) -> Any:
        reward = model.apply(params, batch["ids"], batch["length"])
        better = reward[:, first] - reward[:, second]
        return optax.sigmoid_binary_cross_entropy(better, jnp.ones_like(better)).mean() + 0.01 * (reward**2).mean()

    batch = {"ids": whole(WORDS, SAMPLES, GROUP, LENGTH, seed=1), "length": 1 + whole(LENGTH, SAMPLES, GROUP, seed=2)}
    return with_optimizer(adam(), loss, params, batch, narrow=True)


@case
def jax_critic_with_expectiles_and_a_policy_weighted_by_advantages() -> Case:
    """Three networks, three losses, three optimizers and a slow copy, in one step over what others did."""
    names = ("value", "critic", "policy")

    def step(state: Any, batch: Any) -> Any:
        params, slow, moments = state["params"], state["slow"], state["moments"]
        given = jnp.concatenate([batch["x"], batch["action"]], -1)
        target = forward(slow, given)[:, 0]

        def value_loss(own: Any) -> Any:
            apart = target - forward(own, batch["x"])[:, 0]
            return (jnp.abs(0.7 - (apart < 0)) * apart**2).mean()

        def critic_loss(own: Any) -> Any:
            aim = batch["reward"] + 0.9 * batch["alive"] * forward(params["value"], batch["after"])[:, 0]
            return ((forward(own, given)[:, 0] - aim) ** 2).mean()

        def policy_loss(own: Any) -> Any:
            weight = jnp.minimum(jnp.exp(3.0 * (target - forward(params["value"], batch["x"])[:, 0])), 100.0)
            return (weight * ((forward(own, batch["x"]) - batch["action"]) ** 2).sum(-1)).mean()

        new, losses, held = {}, {}, {}
        for name, loss in zip(names, (value_loss, critic_loss, policy_loss), strict=True):
            losses[name], grads = jax.value_and_grad(loss)(params[name])
            updates, held[name] = adam().update(grads, moments[name])
            new[name] = optax.apply_updates(params[name], updates)
        slow = optax.incremental_update(new["critic"], slow, 0.1)
        return {"params": new, "slow": slow, "moments": held}, losses

    params = {
        "value": mlp(FEATURES, WIDTH, 1),
        "critic": mlp(FEATURES + CLASSES, WIDTH, 1, seed=3),
        "policy": mlp(FEATURES, WIDTH, CLASSES, seed=6),
    }
    state = {"params": params, "slow": params["critic"], "moments": {n: adam().init(params[n]) for n in names}}
    batch = {
        "x": drawn(SAMPLES, FEATURES, seed=1),
        "after": drawn(SAMPLES, FEATURES, seed=2),
        "action": drawn(SAMPLES, CLASSES, seed=3),
        "reward": drawn(SAMPLES, seed=4),
        "alive": (whole(4, SAMPLES, seed=5) > 0) * 1.0,
    }
    return Case(step=step, state=state, batch=batch)


@case
def nnx_advantages_by_a_scan_from_the_end() -> Case:
    """Values, advantages and clipped losses of stretches of a game, with the explained variance beside them."""

    class Agent(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.body = nnx.Linear(FEATURES, WIDTH, kernel_init=nnx.initializers.orthogonal(2**0.5), rngs=rngs)
            self.policy = nnx.Linear(WIDTH, CLASSES, kernel_init=nnx.initializers.orthogonal(0.01), rngs=rngs)
            self.value = nnx.Linear(WIDTH, 1, rngs=rngs)

        def __call__(self, seen: Any) -> Any:
            x = nnx.tanh(self.body(seen))
            return jax.nn.log_softmax(self.policy(x)), self.value(x)[..., 0]

    def advantages(reward: Any, value: Any, over: Any, last: Any) -> Any:
        def back(carry: Any, now: Any) -> Any:
            gain, after = carry
            reward, value, over = now
            delta = reward + 0.99 * after * (1 - over) - value
            gain = delta + 0.99 * 0.95 * (1 - over) * gain
            return (gain, value), gain

        return jax.lax.scan(back, (jnp.zeros_like(last), last), (reward, value, over), reverse=True, unroll=2)[1]

    agent = Agent(nnx.Rngs(0))
    optimizer = nnx.Optimizer(agent, optax.chain(optax.clip_by_global_norm(0.5), adam()), wrt=nnx.Param)

    def step(agent: Any, optimizer: Any, batch: Any) -> Any:
        gain = jax.vmap(advantages)(batch["reward"], batch["value"], batch["over"], batch["last"])
        returns = gain + batch["value"]

        def loss(agent: Any) -> Any:
            said, value = agent(batch["seen"])
            new = jnp.take_along_axis(said, batch["action"][..., None], -1)[..., 0]
            ratio = jnp.exp(new - batch["old"])
            policy = -jnp.minimum(ratio * gain, jnp.clip(ratio, 0.8, 1.2) * gain).mean()
            near = batch["value"] + jnp.clip(value - batch["value"], -0.2, 0.2)
            critic = 0.5 * jnp.maximum((value - returns) ** 2, (near - returns) ** 2).mean()
            entropy = -(jnp.exp(said) * said).sum(-1).mean()
            return policy + 0.5 * critic - 0.01 * entropy, {
                "entropy": entropy,
                "clipped": (jnp.abs(ratio - 1) > 0.2).mean(dtype=ratio.dtype),
            }

        (value, aux), grads = nnx.value_and_grad(loss, has_aux=True)(agent)
        optimizer.update(agent, grads)
        explained = 1 - jnp.var(returns - batch["value"]) / jnp.var(returns)
        return value, aux | {"explained": explained}

    batch = {
        "seen": drawn(SAMPLES, LENGTH, FEATURES, seed=1),
        "action": whole(CLASSES, SAMPLES, LENGTH, seed=2),
        "reward": drawn(SAMPLES, LENGTH, seed=3),
        "value": drawn(SAMPLES, LENGTH, seed=4),
        "over": (whole(5, SAMPLES, LENGTH, seed=5) == 0) * 1.0,
        "last": drawn(SAMPLES, seed=6),
        "old": drawn(SAMPLES, LENGTH, seed=7, scale=0.1) - 1.4,
    }
    return Case(
        step=step,
        state=(agent, optimizer),
        batch=batch,
        jit=nnx.jit,
        after=in_place,
        call=lambda run, state, batch: run(*state, batch),
        options={"batch_argnums": 2},
    )
