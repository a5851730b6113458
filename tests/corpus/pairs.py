"""Steps that compare samples of one batch, or two views of each: contrastive, self-distilled, ranked."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from tests.corpus.case import (
    CLASSES,
    CLASSIFIER,
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
    mlp,
    whole,
    with_optimizer,
)


def unit(x: Any) -> Any:
    return x / jnp.sqrt((x**2).sum(-1, keepdims=True) + 1e-6)


def views() -> dict[str, Any]:
    return {"one": drawn(SAMPLES, FEATURES, seed=1), "two": drawn(SAMPLES, FEATURES, seed=2)}


@case
def jax_sigmoid_pairs_of_pictures_and_texts() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        images, texts = unit(forward(params["image"], batch["one"])), unit(forward(params["text"], batch["two"]))
        logits = images @ texts.T * jnp.exp(params["scale"]) + params["bias"]
        signs = 2 * jnp.eye(len(images)) - 1
        return -jax.nn.log_sigmoid(signs * logits).sum(-1).mean()

    params = {
        "image": mlp(*CLASSIFIER),
        "text": mlp(*CLASSIFIER, seed=7),
        "scale": jnp.float32(1.0),
        "bias": jnp.float32(-3.0),
    }
    return with_optimizer(adam(), loss, params, views())


@case
def jax_two_views_behind_each_other() -> Case:
    """Both views of all samples in one batch of twice the size, each against all others."""

    def loss(params: Any, batch: Any) -> Any:
        both = unit(forward(params, jnp.concatenate([batch["one"], batch["two"]])))
        n = len(batch["one"])
        logits = both @ both.T / 0.5 - 1e9 * jnp.eye(2 * n)
        return cross_entropy(logits, jnp.concatenate([jnp.arange(n, 2 * n), jnp.arange(n)]))

    return with_optimizer(optax.lars(0.1), loss, mlp(*CLASSIFIER), views())


@case
def jax_predicted_views_with_a_slow_target() -> Case:
    optimizer = optax.chain(optax.clip(1.0), adam())

    def step(state: Any, batch: Any) -> Any:
        online, target, opt_state, count = state

        def loss(params: Any) -> Any:
            both = jnp.concatenate([batch["one"], batch["two"]])
            guess = unit(forward(params["guess"], forward(params["net"], both)))
            wanted = unit(jax.lax.stop_gradient(forward(target, both)))
            first, second = jnp.split(guess, 2)
            one, two = jnp.split(wanted, 2)
            return (2 - 2 * (first * two).sum(-1)).mean() + (2 - 2 * (second * one).sum(-1)).mean()

        value, grads = jax.value_and_grad(loss)(online)
        updates, opt_state = optimizer.update(grads, opt_state)
        online = optax.apply_updates(online, updates)
        tau = 1 - (1 - 0.9) * (jnp.cos(jnp.pi * count / 10) + 1) / 2
        target = jax.tree.map(lambda t, p: tau * t + (1 - tau) * p, target, online["net"])
        return (online, target, opt_state, count + 1), {"loss": value, "tau": tau}

    online = {"net": mlp(*CLASSIFIER), "guess": mlp(CLASSES, WIDTH, CLASSES, seed=5)}
    return Case(step=step, state=(online, online["net"], optimizer.init(online), jnp.int32(0)), batch=views())


@case
def jax_teacher_centred_by_the_batch() -> Case:
    """The mean of what the teacher says moves a centre in the state, which the next step subtracts."""

    def step(state: Any, batch: Any) -> Any:
        student, teacher, centre = state

        def loss(params: Any) -> Any:
            said = jax.lax.stop_gradient(forward(teacher, batch["one"]))
            wanted = jax.nn.softmax((said - centre) / 0.1)
            rows = -(wanted * jax.nn.log_softmax(forward(params, batch["two"]) / 0.2)).sum(-1)
            return rows.mean(), said.mean(0, keepdims=True)

        (value, mean), grads = jax.value_and_grad(loss, has_aux=True)(student)
        student = jax.tree.map(lambda p, g: p - 0.1 * g, student, grads)
        teacher = optax.incremental_update(student, teacher, 0.1)
        return (student, teacher, 0.9 * centre + 0.1 * mean), value

    params = mlp(*CLASSIFIER)
    return Case(step=step, state=(params, params, jnp.zeros((1, CLASSES))), batch=views())


@case
def jax_variance_and_covariance_of_views() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        one, two = forward(params, batch["one"]), forward(params, batch["two"])
        spread = sum(jax.nn.relu(1 - jnp.sqrt(z.var(0) + 1e-4)).mean() for z in (one, two))
        centred = one - one.mean(0)
        shared = centred.T @ centred / (len(one) - 1)
        return ((one - two) ** 2).mean() + spread + (shared**2).sum() - (jnp.diag(shared) ** 2).sum()

    return with_optimizer(adam(), loss, mlp(*CLASSIFIER), views())


@case
def jax_triplets_of_the_hardest() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        z = unit(forward(params, batch["x"]))
        apart = jnp.sqrt(jnp.maximum(2 - 2 * z @ z.T, 1e-6))
        same = batch["y"][:, None] == batch["y"][None]
        far = jnp.where(same, apart, 0.0).max(1)
        near = jnp.where(same, 1e3, apart).min(1)
        return jax.nn.relu(far - near + 0.3).mean()

    return with_optimizer(adam(), loss, mlp(*CLASSIFIER), classified())


@case
def jax_margin_on_the_angle() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        cosine = unit(forward(params["net"], batch["x"])) @ unit(params["centres"]).T
        cosine = jnp.clip(cosine, -0.999, 0.999)
        hot = jax.nn.one_hot(batch["y"], CLASSES)
        logits = 8 * jnp.where(hot > 0, jnp.cos(jnp.arccos(cosine) + 0.2), cosine)
        return optax.softmax_cross_entropy(logits, hot).mean()

    params = {"net": mlp(*CLASSIFIER), "centres": drawn(CLASSES, CLASSES, seed=9)}
    return with_optimizer(adam(), loss, params, classified())


@case
def jax_codes_balanced_by_sinkhorn() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        one = unit(forward(params["net"], batch["one"])) @ params["codes"]
        two = unit(forward(params["net"], batch["two"])) @ params["codes"]

        def balanced(scores: Any) -> Any:
            q = jnp.exp(jax.lax.stop_gradient(scores) / 0.5)

            def turn(_: Any, q: Any) -> Any:
                q = q / q.sum(0, keepdims=True)
                return q / q.sum(1, keepdims=True)

            return jax.lax.fori_loop(0, 3, turn, q)

        return -(balanced(one) * jax.nn.log_softmax(two)).sum(-1).mean()

    return with_optimizer(adam(), loss, {"net": mlp(*CLASSIFIER), "codes": drawn(CLASSES, 5, seed=9)}, views())


@case
def jax_hardest_half_of_the_samples() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        rows = optax.softmax_cross_entropy_with_integer_labels(forward(params, batch["x"]), batch["y"])
        return jax.lax.top_k(rows, SAMPLES // 2)[0].mean()

    return with_optimizer(adam(), loss, mlp(*CLASSIFIER), classified())


@case
def jax_risks_of_groups_alike() -> Case:
    """Means of every environment, and how far they lie apart."""

    def loss(params: Any, batch: Any) -> Any:
        rows = optax.softmax_cross_entropy_with_integer_labels(forward(params, batch["x"]), batch["y"])
        own = jax.nn.one_hot(batch["group"], 3, dtype=rows.dtype)
        risks = (own * rows[:, None]).sum(0) / jnp.maximum(own.sum(0), 1)
        return risks.mean() + 2.0 * risks.var()

    batch = {**classified(), "group": jnp.arange(SAMPLES) % 3}
    return with_optimizer(adam(), loss, mlp(*CLASSIFIER), batch)


@case
def jax_cut_and_mixed_with_the_batch_turned_over() -> Case:
    def step(state: Any, batch: Any) -> Any:
        params, key = state
        key, where = jax.random.split(key)
        cut = jax.random.randint(where, (), 1, FEATURES)
        x = jnp.where(jnp.arange(FEATURES) < cut, batch["x"], batch["x"][::-1])
        share = cut / FEATURES

        def loss(p: Any) -> Any:
            logits = forward(p, x)
            return share * cross_entropy(logits, batch["y"]) + (1 - share) * cross_entropy(logits, batch["y"][::-1])

        value, grads = jax.value_and_grad(loss)(params)
        return (jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), key), value

    return Case(step=step, state=(mlp(*CLASSIFIER), jax.random.key(0)), batch=classified())


@case
def jax_negatives_from_the_next_sample() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        z = unit(forward(params, batch["one"]))
        far = (z * unit(forward(params, jnp.roll(batch["two"], 1, axis=0)))).sum(-1)
        near = (z * unit(forward(params, batch["two"]))).sum(-1)
        return jax.nn.softplus(far - near).mean()

    return with_optimizer(adam(), loss, mlp(*CLASSIFIER), views())


@case
def jax_process_of_a_learned_kernel() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        z = forward(params["net"], batch["x"])
        apart = ((z[:, None] - z[None]) ** 2).sum(-1)
        kernel = jnp.exp(params["scale"] - apart / 2) + 0.1 * jnp.eye(len(z))
        root = jnp.linalg.cholesky(kernel)
        solved = jax.scipy.linalg.cho_solve((root, True), batch["y"])
        return (batch["y"] * solved).sum() / 2 + jnp.log(jnp.diag(root)).sum()

    batch = {"x": drawn(SAMPLES, FEATURES, seed=1), "y": drawn(SAMPLES, 1, seed=2)}
    params = {"net": mlp(FEATURES, WIDTH, 2), "scale": jnp.float32(0.0)}
    return with_optimizer(adam(), loss, params, batch)


@case
def jax_pairs_of_answers_behind_each_other() -> Case:
    """Preferred and rejected answers in one batch of twice the size, taken apart behind the model."""

    def loss(params: Any, batch: Any) -> Any:
        def scored(p: Any) -> Any:
            ids = jnp.concatenate([batch["chosen"], batch["rejected"]], axis=0)
            logits = jnp.tanh(p["table"][ids]) @ p["out"]
            each = jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), ids[:, 1:, None], axis=2)[..., 0]
            total = (each * (ids[:, 1:] != 0)).sum(-1)
            return total[: len(batch["chosen"])], total[len(batch["chosen"]) :]

        chosen, rejected = scored(params["own"])
        before, other = jax.lax.stop_gradient(scored(params["reference"]))
        margin = 0.1 * ((chosen - before) - (rejected - other))
        return -jax.nn.log_sigmoid(margin).mean()

    own = {"table": drawn(WORDS, WIDTH), "out": drawn(WIDTH, WORDS)}
    batch = {"chosen": whole(WORDS, SAMPLES, LENGTH, seed=1), "rejected": whole(WORDS, SAMPLES, LENGTH, seed=2)}
    return with_optimizer(optax.rmsprop(1e-3), loss, {"own": own, "reference": own}, batch)


@case
def jax_judge_of_real_and_made_in_one_batch() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        both = jnp.concatenate([batch["x"], batch["made"]])
        labels = jnp.concatenate([jnp.ones(len(batch["x"])), jnp.zeros(len(batch["made"]))])
        return optax.sigmoid_binary_cross_entropy(forward(params, both)[:, 0], labels).mean()

    batch = {"x": drawn(SAMPLES, FEATURES, seed=1), "made": drawn(SAMPLES, FEATURES, seed=2)}
    return with_optimizer(adam(), loss, mlp(FEATURES, WIDTH, 1), batch)


@case
def jax_guided_by_dropping_the_condition() -> Case:
    """The denoiser with and without its condition in one call, for a loss on the guided noise."""

    def loss(params: Any, batch: Any) -> Any:
        x = jnp.tile(batch["x"], (2, 1))
        condition = jnp.concatenate([batch["c"], jnp.zeros_like(batch["c"])])
        with_, without = jnp.split(forward(params, jnp.concatenate([x, condition], -1)), 2)
        return ((without + 1.5 * (with_ - without) - batch["noise"]) ** 2).mean()

    batch = {"x": drawn(SAMPLES, FEATURES, seed=1), "c": drawn(SAMPLES, 2, seed=2), "noise": drawn(SAMPLES, 3, seed=3)}
    return with_optimizer(adam(), loss, mlp(FEATURES + 2, WIDTH, 3), batch)
