"""meshwright plans, predicts and runs the training of large language models on the GPUs you really have.

    import meshwright as mw
    plans = mw.plan("llama-3.1-70b", cluster="64xH100")
    plans[0].explain()

Names are loaded when they are first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

_HOMES = {
    "plan": "app.plan",
    "check": "app.check",
    "explain": "app.explain",
    "compare": "app.compare",
    "size": "app.size",
    "trace": "app.trace",
    "PlanSet": "app.plan_set",
    "parallelize": "runtime.parallelize",
    "save_checkpoint": "runtime.checkpoint",
    "restore_checkpoint": "runtime.checkpoint",
    "grad": "compiler.marking",
    "value_and_grad": "compiler.marking",
    "layer_boundary": "compiler.marking",
    "DataParallel": "compiler.methods",
    "Zero2Parallel": "compiler.methods",
    "Zero3Parallel": "compiler.methods",
    "ShardParallel": "compiler.methods",
    "PipeshardParallel": "compiler.methods",
    "LocalPipeline": "compiler.methods",
    "Auto": "compiler.methods",
    "FromPlan": "compiler.methods",
    "FollowParallel": "compiler.methods",
    "Listing": "compiler.listing",
    "difference": "compiler.listing",
    "Hosts": "compiler.stages.hosts",
    "Islands": "compiler.stages.islands",
    "StagesPlan": "compiler.stages.plan",
    "plan_step": "compiler.stages.search",
    "stages_svg": "compiler.stages.picture",
    "Parallelizer": "specs.seam",
    "Island": "specs.cluster",
    "ModelSlice": "specs.seam",
    "PartialPlan": "specs.seam",
}
"""Public names and the modules they live in."""

_ABSENT = {
    "train": "this version runs nothing itself: plans[0].export('megatron', 'launch') writes what starts a run",
    "validate": "the command `meshwright validate` compares predictions with measured runs",
    "export": "plans[0].export('megatron', 'launch') writes the launch files",
}
"""Names this version lacks, and what to do instead."""

__all__ = ["__version__", "estimate", *_HOMES]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        found: Any = version("meshwright")
    elif name == "estimate":
        # Both the verb and the package of the estimator: importing the package makes it callable, see `_Package`.
        return importlib.import_module("meshwright.estimate")
    elif name in _HOMES:
        try:
            found = getattr(importlib.import_module(f"meshwright.{_HOMES[name]}"), name)
        except ModuleNotFoundError as missing:
            if missing.name != "jax":
                raise
            raise ImportError(f"meshwright.{name} needs JAX: pip install 'meshwright[jax]'", name="jax") from None
    else:
        absent = f"; {_ABSENT[name]}" if name in _ABSENT else ""
        raise AttributeError(
            f"module 'meshwright' has no attribute {name!r}{absent}", name=name, obj=sys.modules[__name__]
        )
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)


class _EstimatePackage(ModuleType):
    """The package `meshwright.estimate`, which called is the verb."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        verb = importlib.import_module("meshwright.app.estimate").estimate
        return verb(*args, **kwargs)


class _Package(ModuleType):
    """This package: `estimate` is a part of it and a verb, whichever is used first."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "estimate" and type(value) is ModuleType:
            value.__class__ = _EstimatePackage
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
