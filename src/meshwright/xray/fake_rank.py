"""One rank of a job on a machine without GPUs: a process group that sends nothing, devices that hold nothing."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


class FakeStream:
    """What stands for a stream or an event of a GPU."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = CPU

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None

    def __enter__(self) -> FakeStream:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FakeStream)

    __hash__ = object.__hash__


@contextlib.contextmanager
def fake_rank(rank: int, world: int) -> Iterator[None]:
    """This process is one rank of a job, with memory of its own and no one to wait for.

    Args:
        rank: the number of the rank.
        world: ranks of the job.
    """
    import torch.distributed._tools.fake_collectives  # noqa: F401  registers collectives on fake tensors
    from torch.testing._internal.distributed.fake_pg import FakeStore

    _without_gpu()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    _own_groups_only(rank)
    try:
        with _OnCpu():
            yield
    finally:
        dist.destroy_process_group()


class _OnCpu(TorchFunctionMode):
    """Tensors that a framework makes on `cuda` by name, as masks of unfused attention, are made on `cpu`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if "device" in kwargs and str(kwargs["device"]).startswith("cuda"):
            kwargs = {**kwargs, "device": CPU}
        return func(*args, **kwargs)


def _own_groups_only(rank: int) -> None:
    """Groups that this rank is not in are never made: a large job has tens of thousands of them."""
    made = dist.new_group

    def new_group(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        if ranks is not None and rank not in ranks:
            return dist.GroupMember.NON_GROUP_MEMBER
        kwargs["backend"] = "fake"
        kwargs.pop("pg_options", None)
        return made(ranks, *args[:1], **kwargs)

    def all_gather_object(found: list[Any], own: Any, *_: Any, **__: Any) -> None:
        found[:] = [own] * len(found)

    dist.all_gather_object = all_gather_object
    dist.new_group = new_group
    dist.distributed_c10d.new_group = new_group


@functools.cache
def _without_gpu() -> None:
    """What frameworks ask of the device itself is answered as if one were there; tensors stay on `cpu`."""
    cuda: Any = torch.cuda
    cuda.current_device = lambda: CPU
    cuda.set_device = lambda *_: None
    for name in ("synchronize", "empty_cache", "manual_seed", "manual_seed_all", "set_rng_state", "_lazy_init"):
        setattr(cuda, name, lambda *_, **__: None)
    cuda._lazy_call = lambda *_, **__: None
    cuda.get_rng_state = cuda.random.get_rng_state = lambda *_, **__: torch.empty(0, dtype=torch.uint8)
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated"):
        setattr(cuda, name, lambda *_, **__: 0)
    torch.tensor = _not_pinned(torch.tensor)
    torch.set_rng_state = lambda *_: None
    cuda.Stream = cuda.Event = FakeStream
    cuda.current_stream = cuda.default_stream = lambda *_: FakeStream()
    cuda.stream = lambda *_: contextlib.nullcontext()
    cuda.get_device_capability = lambda *_: (9, 0)
    tensor: Any = torch.Tensor
    tensor.cuda = lambda self, *_, **__: self
    tensor.record_stream = lambda *_: None
    tensor.pin_memory = lambda self, *_, **__: self
    tensor.type = _type(tensor.type)
    module: Any = torch.nn.Module
    module.cuda = lambda self, *_, **__: self


def _not_pinned(usual: Any) -> Any:
    """Pages are pinned for copies to a GPU."""
    return lambda *args, **kwargs: usual(*args, **{**kwargs, "pin_memory": False})


def _type(usual: Any) -> Any:
    """The name of a tensor's type as on a GPU, which optimizers compare."""

    def of(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found = usual(self, *args, **kwargs)
        named = isinstance(found, str) and not found.startswith("torch.cuda.")
        return found.replace("torch.", "torch.cuda.", 1) if named else found

    return of
