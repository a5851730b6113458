"""What the depth of a model costs before its first step ends: `python -m benchmarks.deep_layers`.

A decoder of 16 and of 64 equal layers, each in a process of its own on eight CPU devices: processor time of reading
the step, cutting it, compiling it, placing its state and its first run, less that of a run that follows.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from benchmarks import markdown_table
from benchmarks.channels import SETTINGS
from benchmarks.timing import Line, run

DEPTHS = 16, 64
MOST_RATIO = 2.0
HIDDEN, HEADS, SEQ_LEN, VOCAB, SAMPLES, MICRO_BATCHES = 128, 4, 32, 256, 16, 2


def arguments(layers: int) -> tuple[Any, Any, Any]:
    """A training step of a decoder in plain JAX, a state and a batch.

    Args:
        layers: of the decoder, all equal.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    from meshwright.specs.layers.attention import Attention
    from meshwright.specs.layers.dense_mlp import DenseMlp
    from meshwright.specs.model import LayerRun, LayerSpec, ModelSpec
    from meshwright.zoo.decoder import Decoder
    from meshwright.zoo.training import Adam, initial_state, train_step

    layer = LayerSpec(
        attention=Attention(heads=HEADS, kv_heads=HEADS, head_dim=HIDDEN // HEADS),
        mlp=DenseMlp(ffn_hidden=4 * HIDDEN, gated=True),
        norm="rmsnorm",
    )
    spec = ModelSpec(
        name="deep",
        family="llama",
        hidden=HIDDEN,
        vocab=VOCAB,
        max_seq_len=SEQ_LEN,
        source="made up",
        tied_embeddings=False,
        runs=(LayerRun(layers=(layer,), repeats=layers),),
        final_norm="rmsnorm",
    )
    model, optimizer = Decoder(spec=spec, seq_len=SEQ_LEN, compute="float32"), Adam()
    # Drawn on the host: to compile what draws the weights of 64 layers takes longer than what is measured.
    drawn = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: initial_state(model, optimizer))
    state = jax.tree.map(lambda one: jnp.asarray(0.02 * drawn.normal(size=one.shape), one.dtype), shapes)
    tokens = jax.random.randint(jax.random.key(1), (SAMPLES, SEQ_LEN + 1), 0, VOCAB)
    return train_step(model, optimizer), state, {"tokens": tokens, "sample": jnp.arange(SAMPLES)}


def spent(layers: int) -> dict[str, float]:
    """Seconds of processor time by what they are spent on.

    Args:
        layers: of the decoder.
    """
    import jax

    import meshwright

    step, *given = arguments(layers)
    state, batch = jax.block_until_ready(given)
    begun = time.process_time()
    parallel = meshwright.parallelize(step, method=meshwright.DataParallel(num_micro_batches=MICRO_BATCHES))
    parallel.lower(state, batch)
    read = time.process_time()
    state, _ = jax.block_until_ready(parallel(state, batch))
    first = time.process_time()
    jax.block_until_ready(parallel(state, batch))
    again = time.process_time() - first
    return {"read_s": read - begun, "first_s": first - read - again, "again_s": again}


def depth_lines() -> list[Line]:
    """Seconds of the deepest, and its ratio to the shallowest."""
    found = {}
    for layers in DEPTHS:
        child = run([sys.executable, "-m", "benchmarks.deep_layers", str(layers)])
        found[layers] = json.loads(child.output) if not child.code else {}
    least, most = (sum(found[layers].get(name, float("nan")) for name in ("read_s", "first_s")) for layers in DEPTHS)
    said = "{0} layers: {read_s:.3g} s until it is cut, {first_s:.3g} s for the first step, {again_s:.3g} s in the next"
    note = "; ".join(said.format(layers, **own) for layers, own in found.items() if own)
    return [Line(f"compile and place {DEPTHS[1]} layers, over {DEPTHS[0]}", most / least, MOST_RATIO, "x", note=note)]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        os.environ.update(SETTINGS)
        print(json.dumps(spent(int(sys.argv[1]))))
    else:
        print(markdown_table(("what", "measured", "target", "ratio", "note"), [line.cells() for line in depth_lines()]))
