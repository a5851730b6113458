"""A small GPT that learns to continue text, trained on every device JAX finds.

One line makes it parallel: the decorator of `train_step`. On a laptop, eight virtual devices stand for eight real ones:

    python examples/gpt.py --steps 20

`--backend processes` gives each mesh a process, `--backend ray` an actor of this machine's Ray or of a cluster's:

    python examples/gpt.py --backend ray --ray 10.0.0.1:6379
"""

import argparse
import os

os.environ.setdefault("NPROC", "64")  # devices of one process wait for each other: more threads than devices
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import optax

import meshwright as mw

PARSER = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
PARSER.add_argument("--steps", type=int, default=50)
PARSER.add_argument("--backend", default="local", help="local, processes or ray")
PARSER.add_argument("--ray", help="address of a Ray cluster")
RUN = PARSER.parse_args()
TEXT = "In the beginning was the plan, and the plan was with the mesh, and the mesh was right. " * 64
WIDTH, HEADS, LAYERS, LENGTH, SAMPLES = 64, 4, 4, 32, 16
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-3))


def init(key):
    def matrix(key, *shape):
        return jax.random.normal(key, shape) / shape[0] ** 0.5

    tokens, places, *layers = jax.random.split(key, 2 + LAYERS)
    shapes = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    layers = [{name: matrix(jax.random.fold_in(key, i), *shape) for i, (name, shape) in enumerate(shapes.items())}
              for key in layers]  # fmt: skip
    params = {"tokens": matrix(tokens, 256, WIDTH), "places": matrix(places, LENGTH, WIDTH), "layers": layers}
    return params, OPTIMIZER.init(params)


def norm(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def loss(params, batch):
    x = params["tokens"][batch["ids"]] + params["places"]
    for layer in params["layers"]:
        q, k, v = (part.reshape(*x.shape[:2], HEADS, -1) for part in jnp.split(norm(x) @ layer["qkv"], 3, axis=-1))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
        scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e9)
        x = x + jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape) @ layer["out"]
        x = x + jax.nn.gelu(norm(x) @ layer["up"]) @ layer["down"]
    logits = norm(x) @ params["tokens"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["next"]).mean()


@mw.parallelize(method=mw.PipeshardParallel(num_stages=2, num_micro_batches=4), backend=RUN.backend, ray=RUN.ray)
def train_step(state, batch):
    params, optimizer = state
    value, grads = mw.value_and_grad(loss)(params, batch)
    updates, optimizer = OPTIMIZER.update(grads, optimizer, params)
    return (optax.apply_updates(params, updates), optimizer), value


def batch(step):
    text = jnp.frombuffer(TEXT.encode(), jnp.uint8).astype(jnp.int32)
    starts = jax.random.randint(jax.random.key(step), (SAMPLES, 1), 0, len(text) - LENGTH - 1)
    windows = text[starts + jnp.arange(LENGTH + 1)]
    return {"ids": windows[:, :-1], "next": windows[:, 1:]}


def main(steps):
    state = init(jax.random.key(0))
    for step in range(steps):
        state, value = train_step(state, batch(step))
        print(f"step {step:3d}  loss {float(value):.3f}", flush=True)


if __name__ == "__main__":
    main(RUN.steps)
