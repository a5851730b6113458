"""An Equinox program with one line added: `python examples/equinox_classifier.py` trains on eight virtual devices."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw


class Classifier(eqx.Module):
    """A list of layers and functions."""

    layers: list

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.layers = [
            eqx.nn.Linear(64, 32, key=keys[0]), jax.nn.relu,
            eqx.nn.Linear(32, 32, key=keys[1]), jax.nn.relu,
            eqx.nn.Linear(32, 10, key=keys[2]), jax.nn.log_softmax,
        ]  # fmt: skip

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def loss(model, x, y):
    chosen = jnp.take_along_axis(jax.vmap(model)(x), y[:, None], axis=1)
    return -jnp.mean(chosen)


optim = optax.adamw(5e-3)


CORES = mw.Hosts(hosts=1, devices_per_host=8, flop_per_s=1e9, launch_s=2e-5,
                 inside_bytes_per_s=1e9, between_bytes_per_s=1e9)  # fmt: skip
"""Eight virtual devices of a CPU, roughly; `hosts="8xH100"` plans for eight H100."""


@mw.parallelize(method=mw.Auto(hosts=CORES), batch_argnums=(2, 3))
@eqx.filter_jit
def make_step(model, opt_state, x, y):
    loss_value, grads = eqx.filter_value_and_grad(loss)(model, x, y)
    updates, opt_state = optim.update(grads, opt_state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), opt_state, loss_value


def digits(seed, count=64):
    """Ten patterns of 64 pixels, with noise."""
    drawn = np.random.default_rng(seed)
    patterns = np.random.default_rng(0).normal(size=(10, 64))
    label = drawn.integers(0, 10, count)
    return (patterns[label] + drawn.normal(size=(count, 64))).astype("float32"), label


model = Classifier(jax.random.key(0))
opt_state = optim.init(eqx.filter(model, eqx.is_array))
for step in range(15):
    model, opt_state, value = make_step(model, opt_state, *digits(seed=1 + step % 5))
    if step % 5 == 0:
        print(f"step {step}: loss {value:.3f}")
print(make_step.compiled().plan)
print(mw.timeline(make_step, model, opt_state, *digits(seed=6)))
