"""Steps of science: fields along rays, operators in frequencies, flows, energies and their derivatives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from tests.corpus.case import (
    CLASSES,
    CLASSIFIER,
    FEATURES,
    SAMPLES,
    WIDTH,
    Case,
    adam,
    case,
    classified,
    cross_entropy,
    drawn,
    forward,
    mlp,
    sgd,
    with_optimizer,
)


@case
def jax_light_along_rays() -> Case:
    """Points drawn along every ray, densities multiplied up, coarse and fine."""

    optimizer = optax.adam(optax.exponential_decay(1e-2, 3, 0.5), eps=1e-3)

    def step(state: Any, batch: Any) -> Any:
        params, opt_state, key = state
        key, own = jax.random.split(key)

        def loss(p: Any) -> Any:
            edges = jnp.linspace(0.1, 1.0, 6)
            jitter = jax.random.uniform(own, (len(batch["from"]), 5))
            depth = edges[:-1] + jitter * (edges[1:] - edges[:-1])
            points = batch["from"][:, None] + depth[..., None] * batch["way"][:, None]
            waves = jnp.concatenate([points, jnp.sin(points * 2.0), jnp.cos(points * 2.0)], -1)
            out = forward(p, waves)
            apart = jnp.diff(depth, append=jnp.full_like(depth[:, :1], 1.5), axis=-1)
            clear = jnp.exp(-jax.nn.softplus(out[..., 0]) * apart)
            before = jnp.concatenate([jnp.ones_like(clear[:, :1]), jnp.cumprod(clear[:, :-1] + 1e-10, -1)], -1)
            colour = ((before * (1 - clear))[..., None] * jax.nn.sigmoid(out[..., 1:])).sum(-2)
            error = ((colour - batch["colour"]) ** 2).mean()
            return error, -10 * jnp.log10(error)

        (_, noise), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state, key), noise

    params = mlp(9, WIDTH, WIDTH, 4)
    batch = {"from": drawn(SAMPLES, 3, seed=1), "way": drawn(SAMPLES, 3, seed=2), "colour": drawn(SAMPLES, 3, seed=3)}
    return Case(step=step, state=(params, optimizer.init(params), jax.random.key(0)), batch=batch)


@case
def jax_operator_in_frequencies_with_complex_weights() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        x = batch["u"][..., None] @ params["in"]
        for weights, own in zip(params["spectral"], params["own"], strict=True):
            waves = jnp.fft.rfft(x, axis=1)
            mixed = jnp.einsum("bkc,kcd->bkd", waves[:, :3], weights)
            mixed = jnp.zeros_like(waves).at[:, :3].set(mixed)
            x = jax.nn.gelu(jnp.fft.irfft(mixed, n=x.shape[1], axis=1) + x @ own)
        error = (x @ params["out"])[..., 0] - batch["v"]
        return (jnp.linalg.norm(error, axis=1) / jnp.linalg.norm(batch["v"], axis=1)).mean()

    params = {
        "in": drawn(1, WIDTH),
        "own": [drawn(WIDTH, WIDTH, seed=i, scale=0.3) for i in (1, 2)],
        "spectral": [
            drawn(3, WIDTH, WIDTH, seed=i, scale=0.2) + 1j * drawn(3, WIDTH, WIDTH, seed=i + 2, scale=0.2)
            for i in (3, 4)
        ],
        "out": drawn(WIDTH, 1, seed=9),
    }
    batch = {"u": drawn(SAMPLES, 8, seed=1), "v": drawn(SAMPLES, 8, seed=2)}

    def step(params: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, batch)
        return jax.tree.map(lambda p, g: p - 0.05 * g.conj(), params, grads), value

    return Case(step=step, state=params, batch=batch)


@case
def jax_flow_of_coupled_halves() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        x, volume = batch["x"], 0.0
        for layer in params:
            x = x @ layer["mix"]
            volume = volume + jnp.linalg.slogdet(layer["mix"])[1]
            one, other = jnp.split(x, 2, axis=-1)
            scale, shift = jnp.split(forward(layer["net"], one), 2, axis=-1)
            scale = jnp.tanh(scale)
            x = jnp.concatenate([one, other * jnp.exp(scale) + shift], -1)
            volume = volume + scale.sum(-1)
        each = jax.scipy.stats.norm.logpdf(x).sum(-1) + volume
        return -each.mean() / jnp.log(2.0) / FEATURES

    params = [
        {
            "mix": jnp.eye(FEATURES) + drawn(FEATURES, FEATURES, seed=i, scale=0.1),
            "net": mlp(FEATURES // 2, WIDTH, FEATURES, seed=10 * i),
        }
        for i in (1, 2)
    ]
    return with_optimizer(optax.adamax(1e-2, eps=1e-3), loss, params, {"x": drawn(SAMPLES, FEATURES, seed=1)})


@case
def jax_energy_kept_along_a_path() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        def energy(q: Any, p: Any) -> Any:
            return forward(params, jnp.concatenate([q, p])).sum()

        def path(q: Any, p: Any) -> Any:
            def move(state: Any, _: Any) -> Any:
                q, p = state
                p = p - 0.05 * jax.grad(energy, 0)(q, p)
                q = q + 0.1 * jax.grad(energy, 1)(q, p)
                p = p - 0.05 * jax.grad(energy, 0)(q, p)
                return (q, p), jnp.concatenate([q, p])

            return jax.lax.scan(move, (q, p), None, length=3)[1]

        return ((jax.vmap(path)(batch["q"], batch["p"]) - batch["path"]) ** 2).mean()

    batch = {"q": drawn(SAMPLES, 2, seed=1), "p": drawn(SAMPLES, 2, seed=2), "path": drawn(SAMPLES, 3, 4, seed=3)}
    return with_optimizer(adam(), loss, mlp(4, WIDTH, 1), batch)


@case
def jax_continuous_flow_with_a_drawn_trace() -> Case:
    def step(state: Any, batch: Any) -> Any:
        params, key = state
        key, own = jax.random.split(key)
        signs = jax.random.rademacher(own, batch["x"].shape, batch["x"].dtype)

        def loss(p: Any) -> Any:
            def speed(t: Any, state: Any) -> Any:
                x, _ = state
                moved, pull = jax.vjp(lambda x: forward(p, jnp.concatenate([x, jnp.full_like(x[:, :1], t)], -1)), x)
                return moved, (pull(signs)[0] * signs).sum(-1)

            def runge(state: Any, t: Any) -> Any:
                h = 0.25
                add = lambda s, k, w: jax.tree.map(lambda a, b: a + w * b, s, k)  # noqa: E731
                k1 = speed(t, state)
                k2 = speed(t + h / 2, add(state, k1, h / 2))
                k3 = speed(t + h / 2, add(state, k2, h / 2))
                k4 = speed(t + h, add(state, k3, h))
                total = jax.tree.map(lambda a, b, c, d: (a + 2 * b + 2 * c + d) / 6, k1, k2, k3, k4)
                return add(state, total, h), None

            start = (batch["x"], jnp.zeros_like(batch["x"][:, 0]))
            (x, volume), _ = jax.lax.scan(runge, start, jnp.arange(4) * 0.25)
            return (0.5 * (x**2).sum(-1) - volume).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return (sgd(params, grads, 0.05), key), value

    return Case(step=step, state=(mlp(4, WIDTH, 3), jax.random.key(0)), batch={"x": drawn(SAMPLES, 3, seed=1)})


@case
def jax_distance_field_with_unit_slope() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        def field(x: Any) -> Any:
            return forward(params, x)[0]

        on, off = jax.vmap(field)(batch["on"]), jax.vmap(jax.value_and_grad(field))(batch["off"])
        normals = jax.vmap(jax.grad(field))(batch["on"])
        eikonal = ((jnp.linalg.norm(off[1], axis=-1) - 1) ** 2).mean()
        return (
            jnp.abs(on).mean()
            + 0.1 * eikonal
            + ((normals - batch["normal"]) ** 2).sum(-1).mean()
            + jnp.exp(-10 * jnp.abs(off[0])).mean()
        )

    batch = {"on": drawn(SAMPLES, 3, seed=1), "off": drawn(SAMPLES, 3, seed=2), "normal": drawn(SAMPLES, 3, seed=3)}
    return with_optimizer(adam(), loss, mlp(3, WIDTH, WIDTH, 1), batch)


@case
def jax_forces_of_atoms_from_an_energy() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        def energy(places: Any, kinds: Any) -> Any:
            apart = places[:, None] - places[None]
            far = jnp.sqrt((apart**2).sum(-1) + jnp.eye(len(places)))
            waves = jnp.exp(-((far[..., None] - jnp.linspace(0.5, 2, 4)) ** 2))
            hidden = params["kind"][kinds]
            sent = jnp.einsum("ijk,kc,jc->ic", waves * (1 - jnp.eye(len(places)))[..., None], params["filter"], hidden)
            return forward(params["out"], hidden + sent).sum()

        value, slope = jax.vmap(jax.value_and_grad(energy))(batch["places"], batch["kinds"])
        return optax.huber_loss(value, batch["energy"]).mean() + ((slope + batch["force"]) ** 2).mean()

    params = {"kind": drawn(3, WIDTH), "filter": drawn(4, WIDTH, seed=1), "out": mlp(WIDTH, WIDTH, 1)}
    batch = {
        "places": drawn(SAMPLES, 4, 3, seed=1),
        "kinds": jnp.arange(4 * SAMPLES).reshape(SAMPLES, 4) % 3,
        "energy": drawn(SAMPLES, seed=2),
        "force": drawn(SAMPLES, 4, 3, seed=3),
    }
    return with_optimizer(optax.amsgrad(1e-2, eps=1e-3), loss, params, batch)


@case
def jax_weights_made_by_another_network() -> Case:
    def loss(params: Any, batch: Any) -> Any:
        def one(x: Any, task: Any) -> Any:
            made = forward(params["maker"], task)
            w, b = made[: FEATURES * CLASSES].reshape(FEATURES, CLASSES), made[FEATURES * CLASSES :]
            return x @ w + b

        return cross_entropy(jax.vmap(one)(batch["x"], batch["task"]), batch["y"])

    params = {"maker": mlp(3, WIDTH, FEATURES * CLASSES + CLASSES)}
    return with_optimizer(adam(), loss, params, classified() | {"task": drawn(SAMPLES, 3, seed=4)})


@case
def jax_experts_switched_for_every_sample() -> Case:
    """`switch` under `vmap`, host-side numbers by `pure_callback`, a rule for forward derivatives."""

    @jax.custom_jvp
    def soft(x: Any) -> Any:
        return jnp.log1p(jnp.exp(x))

    soft.defjvp(lambda primals, tangents: (soft(*primals), jax.nn.sigmoid(primals[0]) * tangents[0]))

    def loss(params: Any, batch: Any) -> Any:
        def one(x: Any, kind: Any) -> Any:
            ways = [lambda x: soft(x @ params["a"]), lambda x: jnp.sin(x @ params["b"]), lambda x: x[:CLASSES]]
            return jax.lax.switch(kind, ways, x)

        logits = jax.vmap(one)(batch["x"], batch["y"] % 3)
        return cross_entropy(logits, batch["y"])

    return with_optimizer(
        optax.yogi(1e-2), loss, {"a": drawn(FEATURES, CLASSES), "b": drawn(FEATURES, CLASSES, seed=1)}, classified()
    )


@case
def jax_picked_rows_by_numbers_made_outside() -> Case:
    """The classic way to pick what a label names, with the row numbers made before the gradient."""

    def step(params: Any, batch: Any) -> Any:
        rows = jnp.arange(len(batch["y"]))
        value, grads = jax.value_and_grad(
            lambda p: -jax.nn.log_softmax(forward(p, batch["x"]))[rows, batch["y"]].mean()
        )(params)
        return sgd(params, grads), value

    return Case(step=step, state=mlp(*CLASSIFIER), batch=classified())
