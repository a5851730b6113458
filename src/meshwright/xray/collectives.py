"""Which collective an operator of PyTorch starts, among how many ranks, with how many bytes."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

_KINDS = {
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall_base_": "all_to_all",
    "alltoall_": "all_to_all",
    "all_to_all_single": "all_to_all",
    "shard_dim_alltoall": "all_to_all",
    "send": "send",
    "recv_": "recv",
    "isend": "send",
    "irecv": "recv",
    "broadcast_": "broadcast",
    "broadcast": "broadcast",
}
_NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")


def _work() -> Any:
    from torch._C._distributed_c10d import FakeWork

    return FakeWork().boxed()


UNREGISTERED = {
    getattr(torch.ops.c10d, name).default: _work
    for name in ("allgather_into_tensor_coalesced_", "reduce_scatter_tensor_coalesced_", "allreduce_coalesced_")
}
"""Collectives in place that PyTorch 2.13 does not run on fake tensors: what they return."""

GROUPS: dict[str, str] = {}
"""Short names of process groups by their ranks' description, which the frameworks give."""

_DESCRIPTIONS = (
    (r"EXPERT.*DATA|EDP|efsdp|edp", "edp"),
    (r"EXPERT.*TENSOR.*MODEL.*PIPELINE", "etp x ep x pp"),
    (r"EXPERT.*TENSOR.*MODEL|TP_EP", "etp x ep"),
    (r"EXPERT.*TENSOR|ETP|etp", "etp"),
    (r"EXPERT.*MODEL|^EP|^ep$|mesh_ep", "ep"),
    (r"EMBEDDING", "embedding"),
    (r"TENSOR.*DATA|DATA.*TENSOR", "tp x dp"),
    (r"DATA", "dp"),
    (r"^MODEL_PARALLEL|TENSOR.*PIPELINE", "tp x pp"),
    (r"TENSOR|^TP|mesh_tp|^tp$", "tp"),
    (r"CONTEXT|^CP|mesh_cp|^cp$", "cp"),
    (r"PIPELINE|^PP|mesh_pp|^pp$", "pp"),
    (r"fsdp|dp|loss|batch", "dp"),
)


def collective_of(func: Any, args: Any, kwargs: Any, made: Any) -> tuple[str, str, int, int] | None:
    """Kind, group, ranks and payload bytes; an empty kind for waits and barriers, None for what is no collective."""
    if func.namespace not in _NAMESPACES:
        return None
    name = func._schema.name.partition("::")[2]
    kind = _KINDS.get(name)
    if kind is None:
        return "", "", 0, 0
    group = _group(args, kwargs)
    if group is None:
        return "", "", 0, 0
    sizes = [_bytes(one) for one in tree_leaves((args, made)) if isinstance(one, torch.Tensor)]
    ranks = group.size()
    size = max(sizes, default=0)
    if name.endswith("_coalesced_"):
        size = max(sum(_bytes(one) for one in tree_leaves(part)) for part in args[:2] if isinstance(part, list))
    if name in ("reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"):
        size = sum(_bytes(one) for one in tree_leaves(args[0]) if isinstance(one, torch.Tensor))
    if name in ("all_gather_into_tensor_coalesced",):
        size = sum(_bytes(one) for one in tree_leaves(made) if isinstance(one, torch.Tensor))
    if name == "allgather_":
        size = sum(_bytes(one) for one in tree_leaves(args[0]) if isinstance(one, torch.Tensor))
    if name == "reduce_scatter_":
        size = sum(_bytes(one) for one in tree_leaves(args[1]) if isinstance(one, torch.Tensor))
    return kind, group_name(group), ranks, size


def group_name(group: Any) -> str:
    """What the ranks of a group share, by the framework's description of it."""
    described = str(getattr(group, "group_desc", "") or "")
    short = GROUPS.get(str(group.group_name))
    if short is not None:
        return short
    return next((name for pattern, name in _DESCRIPTIONS if re.search(pattern, described)), described or "world")


def _group(args: Any, kwargs: Any) -> Any:
    from torch._C._distributed_c10d import ProcessGroup, _resolve_process_group

    for one in (*args, *kwargs.values()):
        if isinstance(one, torch.ScriptObject):
            try:
                return ProcessGroup.unbox(one)
            except (RuntimeError, TypeError):
                continue
    for one in reversed((*args, *kwargs.values())):
        if isinstance(one, str) and not one.isupper() and one not in ("sum", "avg", "max", "min", "product"):
            try:
                return _resolve_process_group(one)
            except (RuntimeError, ValueError):
                continue
    return None


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())
