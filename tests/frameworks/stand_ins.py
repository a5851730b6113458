"""Packages that need a GPU, stood in for by empty classes: for a process that reads a framework's configuration."""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import signal
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Empty(type):
    """A class whose every attribute is another empty class."""

    def __getattr__(cls, name: str) -> Any:
        """Another one, but for what Python itself asks for."""
        if name.startswith("__"):
            raise AttributeError(name)
        return Empty(name, (), {})

    def __getitem__(cls, parameters: Any) -> Any:
        """The class itself, whatever its parameters."""
        return cls

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        """What is decorated, and the class itself where nothing is."""
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) and not options else cls


class Absent(types.ModuleType):
    """A package that is not installed."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        """An empty class."""
        if name.startswith("__"):
            raise AttributeError(name)
        return Empty(name, (), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds packages that are not installed, and all of their parts."""

    def __init__(self, *names: str) -> None:
        """Stand in for these, by their dotted names."""
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """A spec of an absent module."""
        if not any(name == one or name.startswith(f"{one}.") for one in self.names):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """The module."""
        return Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing: there is nothing in it."""


def stand_in(*names: str) -> None:
    """Stand in for packages where they are not installed; Transformer Engine says that it is 2.9."""
    installed = importlib.metadata.version
    importlib.metadata.version = lambda name: (
        "2.9.0" if name.startswith("transformer") and "engine" in name else installed(name)
    )
    sys.meta_path.append(Finder(*names))


@contextmanager
def fake_group(ranks: int, rank: int = 0) -> Iterator[None]:
    """A process group of so many ranks, of which this process is one and the others are not there."""
    import torch.distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    made = torch.distributed.new_group
    torch.distributed.new_group = lambda *given, **options: made(*given, **options | {"backend": None})
    try:
        yield
    finally:
        torch.distributed.new_group = made
        torch.distributed.destroy_process_group()


def host_for_gpu(torch: Any, devices: int = 1) -> None:
    """Take the host for a GPU: what is asked of one does nothing, or tells the host's.

    Args:
        torch: the package, loaded.
        devices: of the host.
    """
    torch.cuda.device_count = lambda: devices
    torch.cuda.set_device = torch.cuda.device = lambda *rest: None
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.manual_seed = torch.cuda.set_rng_state = lambda *rest, **options: None
    torch.cuda.get_rng_state = lambda *rest: torch.zeros(1, dtype=torch.uint8)
    for name in ("memory_allocated", "max_memory_allocated", "max_memory_reserved"):
        setattr(torch.cuda, name, lambda *rest: 0)
    torch.cuda.reset_peak_memory_stats = lambda *rest: None


def adam_on_host(torch: Any) -> Any:
    """DeepSpeed's Adam on the host, in PyTorch: its kernels are compiled where they run."""

    class HostAdam(torch.optim.AdamW):
        def __init__(self, params: Any, *rest: Any, adamw_mode: bool = True, **options: Any) -> None:
            super().__init__(params, lr=options.get("lr", 1e-3))

    HostAdam.__name__ = "DeepSpeedCPUAdam"
    return HostAdam


def shards_on_host(torch: Any) -> None:
    """Let PyTorch's first FSDP hold its shards in the memory of the host, whatever device it is given."""
    from torch.distributed.fsdp import fully_sharded_data_parallel
    from torch.distributed.fsdp._common_utils import _FSDPDeviceHandle

    def on_cpu(state: Any, *rest: Any) -> Any:
        state._device_handle = _FSDPDeviceHandle.from_device(torch.device("cpu"))
        return state

    fully_sharded_data_parallel._init_device_handle = on_cpu


def on_host(torch: Any) -> Any:
    """A mode in which memory of a GPU is that of the host."""
    from torch.overrides import TorchFunctionMode

    def here(given: Any) -> Any:
        named = str(given) if isinstance(given, str | torch.device) else ""
        return torch.device("cpu") if named.startswith("cuda") else given

    class Host(TorchFunctionMode):
        def __torch_function__(self, call: Any, types: Any, given: Any = (), options: Any = None) -> Any:
            if call is torch.device:  # by number it is a GPU
                return call("cpu") if isinstance(given[0], int) else call(*given, **options or {})
            named = {name: here(one) for name, one in (options or {}).items()}
            return call(*(here(one) for one in given), **named)

    return Host()


def without_init(*packages: str) -> None:
    """Make installed packages importable without what their __init__ needs of GPUs and trainers."""
    for name in packages:
        if name in sys.modules and sys.modules[name].__spec__ is None:
            continue  # of an earlier call
        above, _, last = name.rpartition(".")
        found = importlib.util.find_spec(name) if not above else None
        inside = sys.modules[above].__path__ if above else (found.submodule_search_locations or () if found else ())
        made = types.ModuleType(name)
        made.__path__ = [f"{folder}/{last}" for folder in inside] if above else list(inside)
        sys.modules[name] = made


def each_alone(start: Callable[..., dict[str, Any]], runs: list[str]) -> None:
    """Start every run in a process of its own that has all loaded, and print a line of JSON of what it holds.

    Args:
        start: of one run.
        runs: what it is started with, with colons between.
    """
    gc.freeze()  # trainers look for garbage every step: among a million objects of what is loaded it takes 0.3 s
    for text in runs:
        sys.stdout.flush()
        child = os.fork()
        if child:
            if os.waitpid(child, 0)[1]:
                print(json.dumps({"refused": "the process ended"}))
            continue
        signal.setitimer(signal.ITIMER_VIRTUAL, 60)
        try:
            print(json.dumps(start(*text.split(":"))))
        except BaseException as error:  # of programs that leave, too
            import traceback

            traceback.print_exc()
            print(json.dumps({"refused": f"{type(error).__name__}: {error}"}))
        sys.stdout.flush()
        os._exit(0)
