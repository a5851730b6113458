"""Who computes it: strategies cut a layer's operators into local work, collectives and bytes kept.

The catalogue of tensor strategies that can be priced; a plan may name others (`specs.strategy`), which are refused by
name until a file here teaches them.
"""

from __future__ import annotations

TENSOR_STRATEGIES: dict[str, str] = {"1d": "meshwright.strategies.tensor_1d"}
"""Tag of a tensor strategy and the module that cuts operators by it."""
