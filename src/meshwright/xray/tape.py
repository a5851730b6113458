"""Every operator that runs under it is counted, every tensor from its making to its end."""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from meshwright.xray.collectives import UNREGISTERED, collective_of
from meshwright.xray.traced import Collective, Moment, Operator

BLOCK_BYTES = 512
"""What PyTorch's allocator on GPUs rounds to. Source: c10/cuda/CUDACachingAllocator, `kMinBlockSize`, torch 2.13."""

_FREE = ("prim", "profiler")
_QUIET = {
    "view", "_unsafe_view", "t", "transpose", "permute", "expand", "slice", "select", "detach", "alias", "unsqueeze",
    "squeeze", "as_strided", "split", "split_with_sizes", "unbind", "empty", "empty_strided", "new_empty", "empty_like",
    "new_empty_strided", "lift_fresh", "_reshape_alias", "chunk", "view_as_real", "view_as_complex", "unfold",
    "diagonal", "is_same_size", "_local_scalar_dense", "resize_", "set_", "wait_tensor", "sym_size", "stride",
    "record_stream",
}  # fmt: skip
"""Operators that compute nothing."""


class Missing(Exception):
    """What a framework does that cannot be done here."""


class Tape(TorchDispatchMode):
    """Counts what runs under it, inside FakeTensorMode."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: Counter[tuple[Any, ...]] = Counter()
        self.flop: Counter[tuple[Any, ...]] = Counter()
        self.collectives: Counter[tuple[Any, ...]] = Counter()
        self.live: Counter[str] = Counter()
        self.total = 0
        self.kind = "weights"
        self.moment = "model is built"
        self.peaks: dict[str, tuple[int, dict[str, int]]] = {}
        self.muted = 0
        self.weights_only = False
        """Whether batched products of two activations count as operators, not as products."""
        self._of_experts: set[int] = set()
        self._sizes: dict[int, tuple[int, str]] = {}
        self._clock = 0
        self._backwards = 0
        """Operators of backward passes so far."""
        self._made: dict[int, tuple[int, int]] = {}
        """When storages were made: the clock, and operators of backward passes before."""
        self._peak_at: dict[str, int] = {}
        self._again: list[int] = []
        self._inside: list[weakref.ref[torch.UntypedStorage]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again as what the rank does with its own part
        if func.namespace in _FREE:
            return func(*args, **(kwargs or {}))
        made = UNREGISTERED[func]() if func in UNREGISTERED else func(*args, **(kwargs or {}))
        if self.muted:
            for tensor in _tensors(made):
                self._inside.append(weakref.ref(tensor.untyped_storage()))
            return made
        self._count(func, args, kwargs or {}, made)
        for tensor in _tensors(made):
            self.hold(tensor.untyped_storage())
        return made

    def _count(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        found = collective_of(func, args, kwargs, made)
        phase = self.phase
        if found is not None:
            if found[0]:
                self.collectives[(*found, phase)] += 1
            return
        name = func._schema.name.partition("::")[2]
        if name in _QUIET:
            return
        self.note(name, phase, args, made)

    def note(self, name: str, phase: str, args: Any, made: Any) -> None:
        """Count an operator; products of two activations, as of scores and scans, are none of weights."""
        gemm = gemm_shape(name, args, made)
        if gemm is not None and self.weights_only and not self._of_weights(name, phase, gemm[0], args):
            gemm = None
        first = next(_tensors(args), None)
        if first is None:
            first = next(_tensors(made), None)
        dtype = str(first.dtype).removeprefix("torch.") if first is not None else ""
        if gemm is not None:
            key = ("gemm", phase, gemm, dtype)
            self.flop[key] += 2 * gemm[0] * gemm[1] * gemm[2] * gemm[3]
        else:
            key = (name, phase, tuple(first.shape) if first is not None else (), dtype)
        self.operators[key] += 1

    def _of_weights(self, name: str, phase: str, groups: int, args: Any) -> bool:
        """Whether a product is one with weights, or makes their gradient."""
        if name not in ("bmm", "baddbmm"):
            return True
        held = (self._sizes.get(one.untyped_storage()._cdata, (0, ""))[1] for one in _tensors(args))
        if "weights" in held:
            self._of_experts.add(groups)
            return True
        return phase == "backward" and groups in self._of_experts

    @property
    def phase(self) -> str:
        """Forward, or what the autograd engine runs; a forward inside of it makes something again."""
        if self.kind == "optimizer":
            return "update"
        task = torch._C._current_graph_task_id()
        if task == -1:
            return "forward"
        return "recompute" if self._again and self._again[-1] == task else "backward"

    @contextmanager
    def watching_checkpoints(self) -> Iterator[None]:
        """Tells what is made again from the backward pass: checkpoints turn gradients on inside of it."""
        kind: Any = torch.enable_grad
        enter, leave = kind.__enter__, kind.__exit__

        def entered(one: Any) -> Any:
            self._again.append(torch._C._current_graph_task_id())
            return enter(one)

        def left(one: Any, *raised: Any) -> Any:
            self._again.pop()
            return leave(one, *raised)

        kind.__enter__, kind.__exit__ = entered, left
        try:
            yield
        finally:
            kind.__enter__, kind.__exit__ = enter, leave

    def hold(self, storage: torch.UntypedStorage) -> None:
        """A storage lives from now on, until Python lets it go."""
        key = storage._cdata
        size = -(-storage.nbytes() // BLOCK_BYTES) * BLOCK_BYTES
        if key in self._sizes:
            was, kind = self._sizes[key]
            if size != was:
                self._sizes[key] = size, kind
                self._add(kind, size - was)
            return
        kind = self._kind_now
        self._clock += 1
        self._backwards += kind == "backward"
        self._made[key] = self._clock, self._backwards
        self._sizes[key] = size, kind
        weakref.finalize(storage, self._free, key)
        self._add(kind, size)

    @property
    def _kind_now(self) -> str:
        if self.kind != "activations":
            return self.kind
        return "activations" if self.phase == "forward" else "backward"

    def _free(self, key: int) -> None:
        size, kind = self._sizes.pop(key)
        self._add(kind, -size)
        made, backwards = self._made.pop(key)
        if kind == "activations" and backwards == self._backwards and made <= self._peak_at.get(self.moment, -1):
            # It went before a backward pass could use it: at the peak it was there in passing.
            kinds = self.peaks[self.moment][1]
            kinds["activations"] -= size
            kinds["backward"] = kinds.get("backward", 0) + size

    def _add(self, kind: str, size: int) -> None:
        self.live[kind] += size
        self.total += size
        if size > 0 and self.total > self.peaks.get(self.moment, (-1, {}))[0]:
            self.peaks[self.moment] = self.total, dict(self.live)
            self._peak_at[self.moment] = self._clock

    def rename(self, tensors: Iterable[torch.Tensor], kind: str) -> None:
        """What these tensors lie in is of another kind than it was made as."""
        for tensor in tensors:
            key = tensor.untyped_storage()._cdata
            if key in self._sizes and self._sizes[key][1] != kind:
                size, was = self._sizes[key]
                self._sizes[key] = size, kind
                self.live[was] -= size
                self.live[kind] += size

    @contextmanager
    def during(self, moment: str, kind: str) -> Iterator[None]:
        """What happens is of a moment, and what is made of a kind."""
        before = self.moment, self.kind
        self.moment, self.kind = moment, kind
        self.peaks.setdefault(moment, (self.total, dict(self.live)))
        try:
            yield
        finally:
            self.moment, self.kind = before

    def fused(self, function: Callable[..., Any], name: str = "") -> Callable[..., Any]:
        """A function that counts as one operator: of what it makes, only what outlives it is held.

        Args:
            function: what a compiler or a kernel makes one pass of.
            name: the name of the operator; the function's by default.
        """

        @functools.wraps(function)
        def one(*args: Any, **kwargs: Any) -> Any:
            if self.muted:
                return function(*args, **kwargs)
            self.muted += 1
            try:
                made = function(*args, **kwargs)
            finally:
                self.muted -= 1
            inside, self._inside = self._inside, []
            for reference in inside:
                storage = reference()
                if storage is not None:
                    self.hold(storage)
            self.note(name or function.__name__, self.phase, args, made)
            return made

        return one

    def traced_operators(self) -> tuple[Operator, ...]:
        """All of them, products first."""
        found = [
            Operator(name=key[0], phase=key[1], shape=key[2], dtype=key[3], count=count, flop=float(self.flop[key]))
            for key, count in self.operators.items()
        ]
        return tuple(sorted(found, key=lambda one: (-one.flop, -one.count, one.name)))

    def traced_collectives(self) -> tuple[Collective, ...]:
        """All of them, the largest first."""
        found = [
            Collective(kind=key[0], group=key[1], ranks=key[2], payload_bytes=key[3], phase=key[4], count=count)
            for key, count in self.collectives.items()
            if key[2] > 1
        ]
        return tuple(sorted(found, key=lambda one: (one.group, one.kind, -one.payload_bytes)))

    def moments(self) -> tuple[Moment, ...]:
        """The fullest instant of each moment, in order."""
        return tuple(
            Moment(name=name, live_bytes=total, by_kind={kind: size for kind, size in kinds.items() if size})
            for name, (total, kinds) in self.peaks.items()
        )


def gemm_shape(name: str, args: Any, made: Any = None) -> tuple[int, int, int, int] | None:
    """Groups, m, n and k of a matrix product, None of anything else; `made` tells groups of what is summed over."""
    place = {"mm": 0, "addmm": 1, "bmm": 0, "baddbmm": 1, "linear": 0, "_grouped_mm": 0}.get(name)
    if place is None:
        return None
    one, other = args[place], args[place + 1]
    if name == "linear":
        rows = one.numel() // one.shape[-1]
        return 1, int(rows), int(other.shape[0]), int(one.shape[-1])
    if name == "_grouped_mm":
        if isinstance(made, torch.Tensor) and made.dim() == 3 and one.dim() == other.dim() == 2:
            experts, rows, width = map(int, made.shape)
            return experts, rows, width, int(one.shape[-1]) // experts
        groups = int(max(other.shape[0] if other.dim() == 3 else 1, one.shape[0] if one.dim() == 3 else 1))
        if one.dim() == 2 and other.dim() == 3:
            return groups, int(one.shape[0]) // groups, int(other.shape[2]), int(one.shape[1])
        return groups, int(one.shape[-2]), int(other.shape[-1]), int(one.shape[-1]) // groups
    groups = int(one.shape[0]) if one.dim() == 3 else 1
    return groups, int(one.shape[-2]), int(other.shape[-1]), int(one.shape[-1])


def _tensors(made: Any) -> Iterator[torch.Tensor]:
    if isinstance(made, torch.Tensor):
        yield made
        return
    for one in tree_leaves(made):
        if isinstance(one, torch.Tensor):
            yield one
