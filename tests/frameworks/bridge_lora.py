"""Megatron-Bridge's own class of adapters on modules of Megatron-Core's names, in a process of its own.

`transformer_engine`, which needs a GPU, is stood in for by empty classes: adapters are only named here, never run.
Prints the modules that get an adapter, their rank and scale, a line for each argument: overrides as JSON.
"""

from __future__ import annotations

import json
import sys

from stand_ins import stand_in


def main() -> None:
    """Build the adapters and say where they stand."""
    stand_in("transformer_engine")
    import torch
    from megatron.bridge.peft.lora import LoRA

    parts = {"self_attention": ("linear_qkv", "linear_proj"), "mlp": ("linear_fc1", "linear_fc2", "router")}
    paths = [(name, f"decoder.layers.0.{part}") for part, inside in parts.items() for name in inside]
    paths += [("word_embeddings", "embedding"), ("output_layer", "")]
    module = torch.nn.Linear(1, 1)
    for text in sys.argv[1:]:
        said = json.loads(text)
        adapters = LoRA(
            target_modules=[name.strip() for name in said["peft.target_modules"].strip("[]").split(",")],
            dim=int(said["peft.dim"]),
            alpha=int(said["peft.alpha"]),
            dropout=float(said["peft.dropout"]),
        )
        found = [name for name, prefix in paths if adapters.match(module, name, prefix) is not None]
        print(json.dumps({"modules": found, "rank": adapters.dim, "scale": adapters.alpha / adapters.dim}))


if __name__ == "__main__":
    main()
