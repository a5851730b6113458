"""Starts exported configurations of MaxText, up to the compilation of a step, each in a process of its own.

Each argument is a folder with `maxtext.yml`, the number of devices and that of slices, with colons, and
`step` behind another one where a step is traced. MaxText completes
and validates the configuration on so many CPU devices, makes their mesh, shapes and shards the state of a training,
and traces a step. Prints a line of JSON for each: what the run holds then, or how it was refused.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections import Counter
from typing import Any

from stand_ins import Finder, each_alone

ABSENT = (
    *("tokamax", "drjax", "grain", "tunix", "transformer_engine", "maxtext.kernels", "maxtext.trainers.diloco"),
    *("maxtext.input_pipeline", "cloud_accelerator_diagnostics", "ml_goodput_measurement"),
)
"""What is not installed, or is of TPUs and of a newer Python."""


def started(folder: str, devices: str, nodes: str, step: str) -> dict[str, Any]:
    """The configuration, the mesh and the state as the run holds them."""
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    import jax
    import numpy as np
    from jax.experimental import mesh_utils
    from maxtext.configs import pyconfig
    from maxtext.utils import max_utils, maxtext_utils

    max_utils.maybe_initialize_jax_distributed_system = lambda keys: None
    max_utils.get_num_slices = lambda keys, config=None: int(nodes)
    # Devices of a CPU are on no slice.
    mesh_utils.create_hybrid_device_mesh = lambda inside, between, given, **options: np.array(given).reshape(
        [one * other for one, other in zip(inside, between, strict=True)]
    )
    os.chdir(folder)
    config = pyconfig.initialize(["train.py", "maxtext.yml", "run_name=plan", "base_output_directory=out"])
    shape = maxtext_utils.create_device_mesh(config)
    mesh = jax.sharding.Mesh(shape, config.mesh_axes)
    weights, moments, held, products = Counter[str](), Counter[str](), 0, []
    if not config.quantization.startswith("te_"):  # its products are of Transformer Engine
        state, products = traced(config, mesh, a_step=bool(step))
        for path, one in jax.tree_util.tree_leaves_with_path(state):
            of_model = "model" in jax.tree_util.keystr(path[:1])
            if one.ndim and one.dtype == "float32":
                (weights if of_model else moments)[str(one.dtype)] += one.size
                held += math.prod(one.sharding.shard_shape(one.shape)) if of_model else 0
    return {
        "mesh": {name: size for name, size in mesh.shape.items() if size > 1},
        "batch": config.global_batch_size_to_train_on,
        "accumulates": config.gradient_accumulation_steps,
        "sequence": config.max_target_length,
        "stages": [config.num_pipeline_repeats, config.num_layers_per_pipeline_stage, config.num_pipeline_microbatches],
        "layers": config.num_decoder_layers,
        "remat": config.remat_policy,
        "attention": config.attention,
        "context": config.context_parallel_strategy,
        "hardware": config.hardware,
        "interprets": config.hardware == "gpu" and config.megablox,
        "products": products,
        "weights": weights,
        "moments": moments,
        "held": held,
    }


def traced(config: Any, mesh: Any, *, a_step: bool) -> tuple[Any, list[str]]:
    """Weights and moments by shape, as devices hold them, and formats of the products of a traced step."""
    import jax
    from flax.core.spmd import logical_axis_rules
    from maxtext.layers import attention_op
    from maxtext.trainers.pre_train import train, train_compile
    from maxtext.utils import maxtext_utils, sharding

    for kind in ("ulysses_attention", "usp_attention", "tokamax_ring_attention"):
        setattr(attention_op, kind, NotAsked())
    attention_op.AttentionOp.cudnn_flash_attention = attended
    given, named, shards, _, model = train_compile.get_shaped_inputs(mesh, config)
    if not a_step:
        return given[0], []
    of_weights, shards = sharding.maybe_update_params_sharding_with_opt(config, shards)
    shards = sharding.build_zero1_input_state_mesh_shardings(config, shards, of_weights)
    batch = sharding.get_input_data_sharding(config, mesh)
    step, inside, out, static, donated = maxtext_utils.get_functional_train_with_signature(
        train.train_step, batch, shards, model, config, of_weights
    )
    with jax.set_mesh(mesh), logical_axis_rules(config.logical_axis_rules):
        made = jax.jit(step, in_shardings=inside, out_shardings=out, static_argnums=static, donate_argnums=donated)
        text = made.lower(*given, **named).as_text()
    return given[0], sorted(set(re.findall(r"dot_general .*: \(tensor<(?:\d+x)*([a-z]\w*)>, tensor", text)))


class NotAsked:
    """Kernels of TPUs, which no plan asks for."""

    def __getattr__(self, name: str) -> Any:
        """Whether a configuration asks for one."""
        return lambda *given, **options: False


def attended(self: Any, query: Any, key: Any, value: Any, *rest: Any, **options: Any) -> Any:
    """What is made of queries, keys and values by Transformer Engine, which is not installed: by shape alone."""
    return query[..., : value.shape[-1]] * (key.mean() + value.mean())


def main() -> None:
    """Start every run."""
    sys.meta_path.insert(0, Finder(*ABSENT))
    os.environ["JAX_PLATFORMS"] = "cpu"
    import maxtext.trainers.pre_train.train_compile  # noqa: F401, once for all runs

    each_alone(started, sys.argv[1:])


if __name__ == "__main__":
    main()
