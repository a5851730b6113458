"""Steps under `parallelize` beside `jax.jit` on the same devices, pair by pair: `python -m benchmarks.beside_jit`.

A decoder with Adam, its batch over four devices of this machine, or on one. Of each pair of steps, which go first in
turns, the ratio of processor times is taken, and of all pairs the median: what else runs on the machine slows both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks import markdown_table

LAYERS, WIDTH, WORDS, LENGTH = 4, 64, 256, 32
PAIRS, WARM = 30, 3
CASES = ((1, 16), (1, 96), (4, 24), (4, 128))
"""Devices and samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """One case, measured."""

    devices: int
    samples: int
    donates: bool
    jit_s: float
    """Median processor seconds of a step with `jax.jit`."""
    ratio: float
    """Median ratio of a pair, ours over that of `jax.jit`."""


def decoder_step(samples: int) -> tuple[Callable[[Any, Any], Any], Any, Any]:
    """A step, its first state and its batch."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    drawn = np.random.RandomState(0)
    optimizer = optax.adam(1e-3)

    def matrix(*shape: int) -> Any:
        return jnp.asarray(drawn.randn(*shape) * shape[0] ** -0.5, jnp.float32)

    def loss(params: Any, batch: Any) -> Any:
        x = params["words"][batch["ids"]]
        for own in params["layers"]:
            h = x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6)
            scores = jnp.einsum("bqd,bkd->bqk", h @ own["q"], h @ own["k"]) / WIDTH**0.5
            scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
            x = x + (jax.nn.softmax(scores) @ (h @ own["v"])) @ own["o"]
            x = x + jax.nn.gelu(x @ own["up"]) @ own["down"]
        return optax.softmax_cross_entropy_with_integer_labels(x @ params["words"].T, batch["next"]).mean()

    def step(state: Any, batch: Any) -> Any:
        params, moments = state
        value, gradients = jax.value_and_grad(loss)(params, batch)
        updates, moments = optimizer.update(gradients, moments)
        return (optax.apply_updates(params, updates), moments), value

    shapes = {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)} | dict.fromkeys("qkvo", (WIDTH, WIDTH))
    layers = [{name: matrix(*shape) for name, shape in shapes.items()} for _ in range(LAYERS)]
    params = {"words": matrix(WORDS, WIDTH), "layers": layers}
    batch = {name: drawn.randint(0, WORDS, (samples, LENGTH)).astype(np.int32) for name in ("ids", "next")}
    return step, (params, optimizer.init(params)), batch


def beside(devices: int, samples: int, *, donates: bool) -> Beside:
    """Measure one case.

    Args:
        devices: that share the batch.
        samples: of the batch.
        donates: whether steps take the memory of their state.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import meshwright as mw

    step, first, batch = decoder_step(samples)
    used = jax.devices()[:devices]
    mesh = Mesh(np.array(used), ("data",))
    whole, parts = (NamedSharding(mesh, spec) for spec in (PartitionSpec(), PartitionSpec("data")))
    given = (0,) if donates else ()
    runs = {
        "jit": jax.jit(step, in_shardings=(whole, parts), out_shardings=(whole, whole), donate_argnums=given),
        "ours": mw.parallelize(step, method=mw.DataParallel(devices=used), donate=donates),
    }
    states = {name: jax.device_put(jax.tree.map(jnp.copy, first), whole) for name in runs}
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(WARM + PAIRS):
        for name in sorted(runs, reverse=bool(number % 2)):
            begun = time.process_time()
            states[name], _ = jax.block_until_ready(runs[name](states[name], batch))
            taken[name].append(time.process_time() - begun)
    jit, ours = taken["jit"][WARM:], taken["ours"][WARM:]
    return Beside(
        devices=devices,
        samples=samples,
        donates=donates,
        jit_s=statistics.median(jit),
        ratio=statistics.median(b / a for a, b in zip(jit, ours, strict=True)),
    )


def main() -> None:
    """Measure all and print a table."""
    from meshwright.runtime.devices import claim_devices

    claim_devices(max(devices for devices, _ in CASES))
    rows = [beside(*case, donates=donates) for case in CASES for donates in (False, True)]
    cells = [
        (
            str(one.devices),
            str(one.samples),
            "yes" if one.donates else "no",
            f"{one.jit_s * 1e3:.0f} ms",
            f"{one.ratio:.2f}",
        )
        for one in rows
    ]
    print(markdown_table(("devices", "samples", "donates", "processor time with jax.jit", "ours over it"), cells))


if __name__ == "__main__":
    main()
