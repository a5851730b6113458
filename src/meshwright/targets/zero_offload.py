"""What DeepSpeed moves off the device, as its own file and those of programs around it say."""

from __future__ import annotations


def words(*, optimizer: str, weights: str, zero: object) -> str:
    """What a plan's line says of offload; below ZeRO-3 the engine keeps weights on the device, whatever its file says.

    Args:
        optimizer: where states of the optimizer are: `none`, `cpu` or `nvme`.
        weights: where weights are said to be.
        zero: the stage of ZeRO.

    Source: _configure_zero_optimizer of deepspeed/runtime/engine.py (0.19), which gives offload_param to stage 3 alone.
    """
    weights = weights if zero == 3 else "none"
    letters = ("w" if weights != "none" else "") + ("og" if optimizer != "none" else "")
    return f"{letters}-nvme" if "nvme" in (optimizer, weights) else letters
