"""Megatron-LM: plans written as launch scripts, launch scripts read as plans.

`read` has the way back, which loads what evaluates scripts. Options are those of commit d98e8a64 (August 2026), https://github.com/NVIDIA/Megatron-LM.
"""

from __future__ import annotations

from meshwright.formats.megatron.model import model_facts
from meshwright.formats.megatron.write import COMMIT, MegatronExport, megatron_script, translate

__all__ = [
    "COMMIT",
    "MegatronExport",
    "megatron_script",
    "model_facts",
    "translate",
]
