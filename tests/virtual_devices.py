"""Eight CPU devices in this process, set before JAX starts."""

from __future__ import annotations

import os


def eight_devices() -> None:
    """More threads than cores, as devices wait for each other; quick compilation instead of quick code."""
    os.environ.setdefault("NPROC", "64")
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    os.environ.setdefault(
        "XLA_FLAGS", f"{flags} --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false"
    )
