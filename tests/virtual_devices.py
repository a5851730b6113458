"""Eight CPU devices in this process, set before JAX starts."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

QUICK_COMPILATION = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1"
)
"""Quick compilation instead of quick code; small modules are compiled sooner whole than in parts."""


def eight_devices() -> None:
    """More threads than cores, as devices wait for each other; quick compilation."""
    os.environ.setdefault("NPROC", "64")
    os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count=8 {QUICK_COMPILATION}")
    from meshwright.runtime.compilation_cache import write_whole_entries

    _compile_once_for_all_devices()
    write_whole_entries()


@cache
def _compile_once_for_all_devices() -> None:
    """Read for some devices what was compiled for others, as JAX itself does on GPUs.

    On CPUs its cache has a program once for each set of devices: of pipelines, every stage.
    """
    from jax._src import cache_key

    options = cache_key._hash_serialized_compile_options

    def hashed(hash_obj: Any, compile_options_obj: Any, strip_device_assignment: bool = True) -> None:
        options(hash_obj, compile_options_obj, strip_device_assignment=True)

    cache_key._hash_serialized_compile_options = hashed
