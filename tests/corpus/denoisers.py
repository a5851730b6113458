"""Steps of models that remove noise, and of autoencoders and predictors of representations."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import optax
from flax.training import train_state

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
    drawn,
    forward,
    mlp,
    pictures,
    sgd,
    whole,
    with_optimizer,
)

PATCHES = 9


@case
def linen_diffusion_transformer_with_dropped_classes() -> Case:
    """Blocks scaled and shifted by time and class, gates that begin at zero, classes dropped, weights averaged."""

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any, about: Any) -> Any:
            made = nn.Dense(6 * WIDTH, kernel_init=nn.initializers.zeros)(nn.silu(about))
            shift, scale, gate, shift2, scale2, gate2 = jnp.split(made[:, None], 6, axis=-1)
            y = nn.LayerNorm(use_bias=False, use_scale=False)(x) * (1 + scale) + shift
            x = x + gate * nn.MultiHeadDotProductAttention(num_heads=2)(y, y)
            y = nn.LayerNorm(use_bias=False, use_scale=False)(x) * (1 + scale2) + shift2
            return x + gate2 * nn.Dense(WIDTH)(nn.gelu(nn.Dense(2 * WIDTH)(y)))

    class Transformer(nn.Module):
        @nn.compact
        def __call__(self, image: Any, time: Any, label: Any) -> Any:
            size, channels = image.shape[1], image.shape[-1]
            x = nn.Conv(WIDTH, (2, 2), strides=2)(image)
            x = x.reshape(x.shape[0], -1, WIDTH)
            x = x + self.param("place", nn.initializers.normal(0.02), (1, x.shape[1], WIDTH))
            angles = time[:, None] * 10.0 ** jnp.linspace(0.0, 2.0, WIDTH // 2)
            about = nn.Dense(WIDTH)(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1))
            about = about + nn.Embed(CLASSES + 1, WIDTH)(label)
            for _ in range(2):
                x = Block()(x, about)
            x = nn.Dense(4 * channels)(x).reshape(-1, size // 2, size // 2, 2, 2, channels)
            return x.transpose(0, 1, 3, 2, 4, 5).reshape(image.shape)

    class State(train_state.TrainState):
        average: Any
        key: Any

    model = Transformer()
    params = model.init(jax.random.key(0), pictures()["image"][:1], jnp.zeros(1), jnp.zeros(1, int))["params"]
    tx = optax.chain(optax.clip_by_global_norm(1.0), adam())
    state = State.create(apply_fn=model.apply, params=params, tx=tx, average=params, key=jax.random.key(1))

    def step(state: Any, batch: Any) -> Any:
        key, for_time, for_noise, for_drop = jax.random.split(state.key, 4)
        image = batch["image"]
        time = jax.nn.sigmoid(jax.random.normal(for_time, (image.shape[0],), image.dtype))
        noise = jax.random.normal(for_noise, image.shape, image.dtype)
        label = jnp.where(jax.random.uniform(for_drop, (image.shape[0],)) < 0.1, CLASSES, batch["label"])
        at = time[:, None, None, None]

        def loss(params: Any) -> Any:
            found = state.apply_fn({"params": params}, (1 - at) * image + at * noise, time, label)
            return jnp.mean((found - (noise - image)) ** 2)

        value, grads = jax.value_and_grad(loss)(state.params)
        state = state.apply_gradients(grads=grads)
        return state.replace(average=optax.incremental_update(state.params, state.average, 0.01), key=key), value

    return Case(step=step, state=state, batch=pictures(), narrow=True)


@case
def jax_words_masked_at_a_drawn_rate() -> Case:
    """A language model that fills in: each sentence loses its own share of words, and counts by its inverse."""

    def step(state: Any, batch: Any) -> Any:
        params, key = state
        key, for_rate, for_mask = jax.random.split(key, 3)
        ids = batch["ids"]
        # Rates of the batch lie evenly, which lowers the variance.
        start = jax.random.uniform(for_rate)
        rate = jnp.clip((start + jnp.arange(ids.shape[0]) / ids.shape[0]) % 1.0, 1e-2, 1.0)[:, None]
        gone = jax.random.uniform(for_mask, ids.shape) < rate

        def loss(params: Any) -> Any:
            x = params["embed"][jnp.where(gone, WORDS, ids)]
            x = x + jax.nn.softmax(x @ x.swapaxes(1, 2) / WIDTH**0.5) @ x
            each = optax.softmax_cross_entropy_with_integer_labels(forward(params["body"], x), ids)
            return (each * gone / rate).sum() / ids.size

        value, grads = jax.value_and_grad(loss)(params)
        return (sgd(params, grads, 0.02), key), value

    params = {"embed": drawn(WORDS + 1, WIDTH), "body": mlp(WIDTH, WIDTH, WORDS)}
    return Case(step=step, state=(params, jax.random.key(0)), batch={"ids": whole(WORDS, SAMPLES, LENGTH, seed=1)})


@case
def jax_consistency_of_neighbouring_times() -> Case:
    """Two noise levels next to each other map to one picture; levels grow with the step, the teacher is the student."""

    def step(state: Any, batch: Any) -> Any:
        params, count, key = state
        key, for_level, for_noise = jax.random.split(key, 3)
        levels = jnp.minimum(4 * 2 ** (count // 2), 64)
        x = batch["x"]
        place = jax.random.randint(for_level, (x.shape[0],), 0, levels - 1)
        noise = jax.random.normal(for_noise, x.shape, x.dtype)

        def level(i: Any) -> Any:
            return (0.05 + (i / (levels - 1)) * (2.0 - 0.05))[:, None].astype(x.dtype)

        def clean(own: Any, noisy: Any, at: Any) -> Any:
            kept, made = 0.25 / ((at - 0.05) ** 2 + 0.25), 0.5 * (at - 0.05) / jnp.sqrt(at**2 + 0.25)
            return kept * noisy + made * forward(
                own, jnp.concatenate([noisy / jnp.sqrt(at**2 + 0.25), jnp.log(at)], -1)
            )

        low, high = level(place), level(place + 1)

        def loss(own: Any) -> Any:
            apart = clean(own, x + high * noise, high) - jax.lax.stop_gradient(clean(own, x + low * noise, low))
            return (jnp.sqrt((apart**2).sum(-1) + 1e-3) - 1e-3**0.5).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return (sgd(params, grads), count + 1, key), value

    state = (mlp(FEATURES + 1, WIDTH, FEATURES), jnp.zeros((), jnp.int32), jax.random.key(2))
    return Case(step=step, state=state, batch={"x": drawn(SAMPLES, FEATURES, seed=1)})


@case
def linen_velocity_weighted_by_signal_to_noise() -> Case:
    """A residual network of convolutions and group norms; the schedule is a table that is looked up for each sample."""
    betas = jnp.linspace(1e-3, 0.2, 20)
    kept = jnp.cumprod(1 - betas)

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any, at: Any, *, train: bool) -> Any:
            channels = x.shape[-1]
            about = nn.silu(nn.Dense(WIDTH)(nn.Embed(20, WIDTH)(at)))[:, None, None]
            x = nn.Conv(WIDTH, (3, 3))(x)
            for _ in range(2):
                y = nn.Conv(WIDTH, (3, 3))(nn.silu(nn.GroupNorm(num_groups=2)(x))) + about
                y = nn.Dropout(0.1, deterministic=not train)(nn.silu(nn.GroupNorm(num_groups=2)(y)))
                x = (x + nn.Conv(WIDTH, (3, 3))(y)) / 2**0.5
            return nn.Conv(channels, (3, 3))(x)

    model = Net()
    params = model.init(jax.random.key(0), pictures()["image"][:1], jnp.zeros(1, int), train=False)

    def step(state: Any, batch: Any) -> Any:
        params, opt_state, key = state
        key, for_time, for_noise, for_dropout = jax.random.split(key, 4)
        image = batch["image"]
        at = jax.random.randint(for_time, (image.shape[0],), 0, 20)
        noise = jax.random.normal(for_noise, image.shape, image.dtype)
        share = kept[at].astype(image.dtype)
        a, s = jnp.sqrt(share)[:, None, None, None], jnp.sqrt(1 - share)[:, None, None, None]

        def loss(params: Any) -> Any:
            rngs = {"dropout": for_dropout}
            found = model.apply(params, a * image + s * noise, at, train=True, rngs=rngs)
            each = ((found - (a * noise - s * image)) ** 2).mean((1, 2, 3))
            ratio = share / (1 - share)
            return (each * jnp.minimum(ratio, 5.0) / (ratio + 1)).mean()

        value, grads = jax.value_and_grad(loss)(params)
        updates, opt_state = adam().update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state, key), value

    return Case(step=step, state=(params, adam().init(params), jax.random.key(1)), batch=pictures(), narrow=True)


@case
def equinox_autoencoder_with_free_bits_and_annealed_divergence() -> Case:
    """Convolutions down and up, a weight of the divergence that grows with the step, and bits that cost nothing."""

    class Model(eqx.Module):
        down: eqx.nn.Conv2d
        to_code: eqx.nn.Linear
        from_code: eqx.nn.Linear
        up: eqx.nn.ConvTranspose2d

        def __init__(self, key: Any) -> None:
            a, b, c, d = jax.random.split(key, 4)
            self.down = eqx.nn.Conv2d(2, 4, 2, stride=2, key=a)
            self.to_code = eqx.nn.Linear(36, 6, key=b)
            self.from_code = eqx.nn.Linear(3, 36, key=c)
            self.up = eqx.nn.ConvTranspose2d(4, 2, 2, stride=2, key=d)

        def __call__(self, x: Any, key: Any) -> Any:
            mean, log_var = jnp.split(self.to_code(jax.nn.elu(self.down(x)).ravel()), 2)
            code = mean + jnp.exp(0.5 * log_var) * jax.random.normal(key, mean.shape, mean.dtype)
            return self.up(jax.nn.elu(self.from_code(code)).reshape(4, 3, 3)), mean, log_var

    optimizer = optax.adabelief(1e-2, eps=1e-3)
    annealed = optax.linear_schedule(0.0, 1.0, 10)

    @eqx.filter_value_and_grad(has_aux=True)
    def loss_of(model: Any, x: Any, keys: Any, weight: Any) -> Any:
        again, mean, log_var = jax.vmap(model)(x, keys)
        apart = optax.sigmoid_binary_cross_entropy(again, jax.nn.sigmoid(x)).sum((1, 2, 3)).mean()
        divergence = 0.5 * (jnp.exp(log_var) + mean**2 - 1 - log_var)
        return apart + weight * jnp.maximum(divergence, 0.1).sum(-1).mean(), (apart, divergence.mean(0))

    def step(state: Any, batch: Any) -> Any:
        model, opt_state, count, key = state
        key, now = jax.random.split(key)
        x = batch["image"].transpose(0, 3, 1, 2)
        (value, aux), grads = loss_of(model, x, jax.random.split(now, x.shape[0]), annealed(count))
        updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
        return (eqx.apply_updates(model, updates), opt_state, count + 1, key), (value, aux)

    model = Model(jax.random.key(0))
    state = (
        model,
        optimizer.init(eqx.filter(model, eqx.is_inexact_array)),
        jnp.zeros((), jnp.int32),
        jax.random.key(1),
    )
    return Case(step=step, state=state, batch=pictures(), jit=eqx.filter_jit)


@case
def haiku_vector_quantizer_of_its_library() -> Case:
    """Codes follow moving sums of what chose them, which the library keeps as state."""

    def run(x: Any) -> Any:
        z = hk.nets.MLP([WIDTH, 4])(x)
        made = hk.nets.VectorQuantizerEMA(4, 5, commitment_cost=0.25, decay=0.9)(z, is_training=True)
        return ((hk.nets.MLP([WIDTH, FEATURES])(made["quantize"]) - x) ** 2).mean() + made["loss"], made["perplexity"]

    net = hk.without_apply_rng(hk.transform_with_state(run))
    params, held = net.init(jax.random.key(0), classified()["x"])

    def step(state: Any, batch: Any) -> Any:
        params, held, opt_state = state

        def loss(params: Any) -> Any:
            (value, perplexity), new = net.apply(params, held, batch["x"])
            return value, (new, perplexity)

        (value, (new, perplexity)), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, opt_state = adam().update(grads, opt_state)
        return (optax.apply_updates(params, updates), new, opt_state), (value, perplexity)

    return Case(step=step, state=(params, held, adam().init(params)), batch=classified(), narrow=True)


@case
def linen_patches_predicted_from_other_patches() -> Case:
    """An encoder sees some patches, a slow copy of it all of them; a predictor fills the gap in what they mean."""

    class Encoder(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Dense(WIDTH)(x)
            y = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(num_heads=2)(y, y)
            return nn.LayerNorm()(x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(WIDTH)(x))))

    class Predictor(nn.Module):
        @nn.compact
        def __call__(self, seen: Any, where: Any) -> Any:
            gap = self.param("gap", nn.initializers.normal(0.02), (WIDTH,))
            places = nn.Embed(PATCHES, WIDTH)(where)
            x = jnp.concatenate([seen, gap + places], 1)
            x = x + nn.MultiHeadDotProductAttention(num_heads=2)(x, x)
            return nn.Dense(WIDTH)(x[:, seen.shape[1] :])

    encoder, predictor = Encoder(), Predictor()
    patch = jnp.zeros((1, PATCHES, FEATURES))
    online = encoder.init(jax.random.key(0), patch)
    ahead = predictor.init(jax.random.key(1), jnp.zeros((1, 5, WIDTH)), jnp.zeros((1, 4), int))

    def step(state: Any, batch: Any) -> Any:
        params, slow, opt_state, count = state
        momentum = 1 - 0.1 * (jnp.cos(jnp.pi * count / 20) + 1) / 2
        seen, hidden = batch["order"][:, :5], batch["order"][:, 5:]
        target = encoder.apply(slow, batch["patches"])
        target = jnp.take_along_axis(target, hidden[..., None], 1)
        target = jax.lax.stop_gradient(nn.standardize(target))

        def loss(params: Any) -> Any:
            given = jnp.take_along_axis(batch["patches"], seen[..., None], 1)
            found = predictor.apply(params["ahead"], encoder.apply(params["online"], given), hidden)
            return optax.huber_loss(found, target).mean()

        value, grads = jax.value_and_grad(loss)(params)
        updates, opt_state = adam().update(grads, opt_state)
        params = optax.apply_updates(params, updates)
        slow = jax.tree.map(lambda s, p: momentum * s + (1 - momentum) * p, slow, params["online"])
        return (params, slow, opt_state, count + 1), value

    order = jnp.argsort(drawn(SAMPLES, PATCHES, seed=3), axis=1).astype(jnp.int32)
    params = {"online": online, "ahead": ahead}
    return Case(
        step=step,
        state=(params, online, adam().init(params), jnp.zeros(())),
        narrow=True,
        batch={"patches": drawn(SAMPLES, PATCHES, FEATURES, seed=2), "order": order},
    )


@case
def jax_codes_drawn_by_gumbel_that_all_shall_be_used() -> Case:
    """Frames told from others of their sentence by a drawn code; the mean use of codes over the batch has entropy."""

    def step(state: Any, batch: Any) -> Any:
        params, key, count = state
        key, for_code, for_others = jax.random.split(key, 3)
        heat = jnp.maximum(2.0 * 0.95**count, 0.5)
        frames = batch["frames"]
        other = jax.random.randint(for_others, (frames.shape[0], LENGTH, 3), 0, LENGTH - 1)
        other = other + (other >= jnp.arange(LENGTH)[:, None])

        def loss(params: Any) -> Any:
            logits = frames @ params["codes"]
            soft = jax.nn.softmax((logits + jax.random.gumbel(for_code, logits.shape, logits.dtype)) / heat)
            hard = jax.nn.one_hot(soft.argmax(-1), soft.shape[-1], dtype=soft.dtype)
            aims = (hard + soft - jax.lax.stop_gradient(soft)) @ params["table"]
            context = forward(params["body"], frames)
            among = jnp.concatenate([aims[:, :, None], jax.vmap(lambda row, i: row[i])(aims, other)], 2)
            near = (among * context[:, :, None]).sum(-1) / 0.5
            use = jax.nn.softmax(logits).mean((0, 1))
            return -jax.nn.log_softmax(near)[..., 0].mean() + 0.1 * (use * jnp.log(use + 1e-7)).sum()

        value, grads = jax.value_and_grad(loss)(params)
        return (sgd(params, grads), key, count + 1), value

    params = {
        "codes": drawn(FEATURES, 5, scale=0.4),
        "table": drawn(5, WIDTH, seed=1),
        "body": mlp(FEATURES, WIDTH, WIDTH, seed=2),
    }
    return Case(
        step=step,
        state=(params, jax.random.key(3), jnp.zeros(())),
        batch={"frames": drawn(SAMPLES, LENGTH, FEATURES, seed=4)},
    )


@case
def jax_labels_as_positives_among_all_pairs() -> Case:
    """Every sample of the same class is near, all others far."""

    def loss(params: Any, batch: Any) -> Any:
        z = forward(params, batch["x"])
        z = z / (jnp.linalg.norm(z, axis=1, keepdims=True) + 1e-6)
        off = 1.0 - jnp.eye(z.shape[0])
        same = (batch["y"][:, None] == batch["y"]) * off
        far = z @ z.T / 0.5
        log_p = far - jnp.log((jnp.exp(far) * off).sum(1, keepdims=True))
        return -((same * log_p).sum(1) / jnp.maximum(same.sum(1), 1)).mean()

    return with_optimizer(adam(), loss, mlp(*CLASSIFIER), classified())
