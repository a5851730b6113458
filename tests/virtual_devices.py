"""Eight CPU devices in this process, set before JAX starts."""

from __future__ import annotations

import os

QUICK_COMPILATION = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1"
)
"""Quick compilation instead of quick code; small modules are compiled sooner whole than in parts."""


def eight_devices() -> None:
    """More threads than cores, as devices wait for each other; quick compilation."""
    os.environ.setdefault("NPROC", "64")
    os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count=8 {QUICK_COMPILATION}")
