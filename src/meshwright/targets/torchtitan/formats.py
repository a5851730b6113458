"""Products in 8 bits as torchtitan has them: converters of a model's config, before adapters are added to it.

The head and routers stay in 16 bits. Source: torchtitan/components/quantization of torchtitan 0.3.0 (2026-11).
"""

from __future__ import annotations

from meshwright.targets.sayable import Plan
from meshwright.targets.torchtitan import FORMATS

_LINEAR = {
    "fp8": 'Float8LinearConverter.Config(model_compile_enabled=True, filter_fqns=["lm_head", "router.gate"])',
    "mxfp8": "MXFP8LinearConverter.Config(model_compile_enabled=True)",
}
_EXPERTS = {
    "fp8": "Float8GroupedExpertsConverter.Config(model_compile_enabled=True)",
    "mxfp8": "MXFP8GroupedExpertsConverter.Config(model_compile_enabled=True)",
}


def converters(plan: Plan) -> tuple[str, ...]:
    """The converters that a plan's format of products needs, as Python; none in 16 bits."""
    low = plan.precision.compute
    if low not in FORMATS:
        return ()
    return (_LINEAR[low], *([_EXPERTS[low]] if plan.model.is_moe else []))


def converter_classes(plan: Plan) -> tuple[str, ...]:
    """Classes of these converters."""
    return tuple(text.partition(".")[0] for text in converters(plan))
