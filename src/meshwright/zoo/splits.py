"""Which axes of a weight ranks split: columns into a layer's matrices, rows out of them, heads, tokens, experts.

Source: Shoeybi et al. 2019, Megatron-LM, section 3. Every expert is split by expert tensor ranks as an MLP is by tensor
ranks. What is added to the stream whole (norms, positions, biases of outputs, routers) is whole on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.compiler.grid import Ranks

AXES: dict[tuple[str, str], Mapping[int, Ranks]] = {
    ("attention", "q"): {1: Ranks.TENSOR},
    ("attention", "k"): {1: Ranks.TENSOR},
    ("attention", "v"): {1: Ranks.TENSOR},
    ("attention", "q_bias"): {0: Ranks.TENSOR},
    ("attention", "k_bias"): {0: Ranks.TENSOR},
    ("attention", "v_bias"): {0: Ranks.TENSOR},
    ("attention", "out"): {0: Ranks.TENSOR},
    ("mlp", "up"): {1: Ranks.TENSOR},
    ("mlp", "gate"): {1: Ranks.TENSOR},
    ("mlp", "up_bias"): {0: Ranks.TENSOR},
    ("mlp", "gate_bias"): {0: Ranks.TENSOR},
    ("mlp", "down"): {0: Ranks.TENSOR},
    ("experts", "up"): {0: Ranks.EXPERT, 2: Ranks.EXPERT_TENSOR},
    ("experts", "gate"): {0: Ranks.EXPERT, 2: Ranks.EXPERT_TENSOR},
    ("experts", "up_bias"): {0: Ranks.EXPERT, 1: Ranks.EXPERT_TENSOR},
    ("experts", "gate_bias"): {0: Ranks.EXPERT, 1: Ranks.EXPERT_TENSOR},
    ("experts", "down"): {0: Ranks.EXPERT, 1: Ranks.EXPERT_TENSOR},
    ("experts", "down_bias"): {0: Ranks.EXPERT},
    ("experts", "shared_up"): {1: Ranks.TENSOR},
    ("experts", "shared_gate"): {1: Ranks.TENSOR},
    ("experts", "shared_down"): {0: Ranks.TENSOR},
    ("embedding", "tokens"): {0: Ranks.TENSOR},
    ("head", "projection"): {1: Ranks.TENSOR},
    ("head", "bias"): {0: Ranks.TENSOR},
}
"""By the last two names of a path."""


def split_axes(path: str) -> Mapping[int, Ranks]:
    """Axes of a value of the state that ranks split; its moments are split alike.

    Args:
        path: as `0.weights.layers.3.mlp.up`; layers of the perceptron have a number in place of a name, and take
            columns and rows in turn.
    """
    *_, owner, name = ("", *path.split("."))
    if not owner.isdigit() or name not in ("weight", "bias"):
        return AXES.get((owner, name), {})
    columns = int(owner) % 2 == 0
    if name == "weight":
        return {int(columns): Ranks.TENSOR}
    return {0: Ranks.TENSOR} if columns else {}


def expert_axes(name: str) -> Mapping[int, Ranks]:
    """Axes that ranks split of a weight of a layer's experts.

    Args:
        name: of the weight.
    """
    return AXES.get(("experts", name), {})
