"""Which axis of a weight tensor ranks split: columns into a layer's matrices, rows out of them, heads, tokens.

Source: Shoeybi et al. 2019, Megatron-LM, section 3. Every expert is split as an MLP is. What is added to the stream
whole (norms, positions, biases of outputs, routers) is whole on every rank.
"""

from __future__ import annotations

AXES: dict[tuple[str, str], int] = {
    ("attention", "q"): 1,
    ("attention", "k"): 1,
    ("attention", "v"): 1,
    ("attention", "q_bias"): 0,
    ("attention", "k_bias"): 0,
    ("attention", "v_bias"): 0,
    ("attention", "out"): 0,
    ("mlp", "up"): 1,
    ("mlp", "gate"): 1,
    ("mlp", "up_bias"): 0,
    ("mlp", "gate_bias"): 0,
    ("mlp", "down"): 0,
    ("experts", "up"): 2,
    ("experts", "gate"): 2,
    ("experts", "up_bias"): 1,
    ("experts", "gate_bias"): 1,
    ("experts", "down"): 1,
    ("experts", "shared_up"): 1,
    ("experts", "shared_gate"): 1,
    ("experts", "shared_down"): 0,
    ("embedding", "tokens"): 0,
    ("head", "projection"): 1,
    ("head", "bias"): 0,
}
"""By the last two names of a path."""


def tensor_axis(path: str) -> int | None:
    """Axis of a value of the state that tensor ranks split; its moments are split alike.

    Args:
        path: as `0.weights.layers.3.mlp.up`; layers of the perceptron have a number in place of a name, and take
            columns and rows in turn.
    """
    *_, owner, name = ("", *path.split("."))
    if owner.isdigit() and name in ("weight", "bias"):
        columns = int(owner) % 2 == 0
        return int(columns) if name == "weight" else (0 if columns else None)
    return AXES.get((owner, name))
