"""Starts exported configurations of MaxText, up to the compilation of a step, each in a process of its own.

Each argument is a folder with `maxtext.yml`, the number of devices and that of nodes, with colons. MaxText completes
and validates the configuration on so many CPU devices, makes their mesh, and shapes and shards the state of a training.
Prints a line of JSON for each: what the run holds then, or how it was refused.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections import Counter
from typing import Any

from stand_ins import Finder

ABSENT = (
    *("tokamax", "drjax", "grain", "tunix", "transformer_engine", "maxtext.kernels", "maxtext.trainers.diloco"),
    *("maxtext.input_pipeline", "cloud_accelerator_diagnostics", "ml_goodput_measurement"),
)
"""What is not installed, or is of TPUs and of a newer Python."""


def started(folder: str, devices: str, nodes: str) -> dict[str, Any]:
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
    weights, moments, held = Counter[str](), Counter[str](), 0
    if not config.quantization.startswith("te_"):  # its products are of Transformer Engine
        for path, one in jax.tree_util.tree_leaves_with_path(abstract_state(config, mesh)):
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
        "weights": weights,
        "moments": moments,
        "held": held,
    }


def abstract_state(config: Any, mesh: Any) -> Any:
    """Weights and moments by shape, as devices hold them."""
    from flax import nnx
    from maxtext.common import train_state_nnx
    from maxtext.optimizers import optimizers
    from maxtext.utils import maxtext_utils, model_creation_utils

    made, model = model_creation_utils.create_nnx_abstract_model(config, mesh)
    update = optimizers.get_optimizer(config, maxtext_utils.create_learning_rate_schedule(config), model, mesh=mesh)

    def state() -> Any:
        own = made()
        return train_state_nnx.TrainStateNNX(own, nnx.Optimizer(own, update, wrt=nnx.Param))

    return maxtext_utils.get_abstract_state(config, mesh, state, True)[0]


def main() -> None:
    """Start every run."""
    sys.meta_path.insert(0, Finder(*ABSENT))
    os.environ["JAX_PLATFORMS"] = "cpu"
    import maxtext.utils.model_creation_utils  # noqa: F401, once for all runs

    for text in sys.argv[1:]:
        sys.stdout.flush()
        if child := os.fork():  # the number of devices is that of a process
            os.waitpid(child, 0)
            continue
        try:
            print(json.dumps(started(*text.split(":"))), flush=True)
        except BaseException as error:
            print(json.dumps({"refused": f"{type(error).__name__}: {error}"}), flush=True)
        os._exit(0)


if __name__ == "__main__":
    main()
