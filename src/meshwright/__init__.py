"""meshwright plans, predicts and runs the training of large language models on the GPUs you really have.

    import meshwright as mw
    plans = mw.plan("llama-3.1-70b", cluster="64xH100")
    plans[0].explain()

Every verb of the command is a function here, with the same fields. Names are loaded when they are first used, so that
importing the package costs next to nothing.

With `pip install 'meshwright[jax]'` also: parallelize, timeline, grad, value_and_grad, layer_boundary, save_checkpoint,
restore_checkpoint, Checkpoints, CountedBatches, DataParallel, Zero2Parallel, Zero3Parallel, ShardParallel,
PipeshardParallel, LocalPipeline, Auto, FromPlan, FollowParallel, Listing, difference, plan_step.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

_VERBS = (
    *(
        "plan",
        "estimate",
        "check",
        "explain",
        "compare",
        "size",
        "trace",
        "report",
        "sweep",
        "tune",
        "export",
        "schedule",
    ),
    *("validate", "calibrate", "profile", "run", "verify", "xray"),
)
"""Verbs of the command that are functions here."""
_HOMES = {
    "PlanSet": "app.plans.plan_set",
    "Hosts": "compiler.stages.hosts",
    "Islands": "compiler.stages.islands",
    "StagesPlan": "compiler.stages.plan",
    "stages_svg": "compiler.stages.picture",
    "Parallelizer": "specs.seam",
    "Island": "specs.cluster",
    "ModelSlice": "specs.seam",
    "PartialPlan": "specs.seam",
    "MeshwrightError": "errors",
    "InputError": "errors",
    "UnsupportedError": "errors",
    "InfeasibleError": "errors",
}
"""Other public names and the modules they live in."""
_WITH_JAX = {
    "parallelize": "runtime.parallelize",
    "timeline": "app.step_timeline",
    "save_checkpoint": "runtime.checkpoint",
    "restore_checkpoint": "runtime.checkpoint",
    "Checkpoints": "runtime.orbax_checkpoints",
    "CountedBatches": "runtime.orbax_checkpoints",
    "grad": "compiler.marking",
    "value_and_grad": "compiler.marking",
    "layer_boundary": "compiler.marking",
    "DataParallel": "compiler.methods.data",
    "Zero2Parallel": "compiler.methods.data",
    "Zero3Parallel": "compiler.methods.data",
    "ShardParallel": "compiler.methods.shard",
    "PipeshardParallel": "compiler.methods.pipeshard",
    "LocalPipeline": "compiler.methods.pipeshard",
    "Auto": "compiler.methods.auto",
    "FromPlan": "compiler.methods.decided",
    "FollowParallel": "compiler.methods.decided",
    "Listing": "compiler.instructions.listing",
    "difference": "compiler.instructions.listing",
    "plan_step": "compiler.stages.search",
}
"""Names that need JAX."""
_ALSO_PACKAGES = ("estimate", "calibrate", "report", "xray")
"""Verbs that packages are called by too: importing the package makes it callable."""
_ELSEWHERE = {"train": "`meshwright.run` trains here; plans[0].export('megatron', 'launch') writes what starts a run"}
"""Names that are not there, and what to use instead."""


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name == "__version__":
        from importlib.metadata import version

        found: Any = version("meshwright")
    elif name in _ALSO_PACKAGES:
        return importlib.import_module(f"meshwright.{name}")
    elif name in _VERBS:
        found = _verb(name)
    elif name in _HOMES:
        found = getattr(importlib.import_module(f"meshwright.{_HOMES[name]}"), name)
    elif name in _WITH_JAX:
        try:
            found = getattr(importlib.import_module(f"meshwright.{_WITH_JAX[name]}"), name)
        except ModuleNotFoundError as missing:
            if missing.name is None or missing.name.split(".")[0] != "jax":
                raise
            raise ImportError(f"meshwright.{name} needs JAX: pip install 'meshwright[jax]'", name="jax") from None
    else:
        instead = f"; {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
        raise AttributeError(
            f"module 'meshwright' has no attribute {name!r}{instead}", name=name, obj=sys.modules[__name__]
        )
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """The names that can be used here: without JAX those that need it are left out, and the docstring says which."""
    return sorted(("__version__", *_VERBS, *_HOMES, *(_WITH_JAX if _has_jax() else ())))


def _has_jax() -> bool:
    from importlib.util import find_spec

    try:
        return find_spec("jax") is not None
    except (ImportError, ValueError):
        return False


def _verb(name: str) -> Any:
    from meshwright.app.verbs import python_verb

    return python_verb(name)


class _CallablePackage(ModuleType):
    """A package that, called, is the verb of its name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _verb(self.__name__.rpartition(".")[2])(*args, **kwargs)

    @property
    def __signature__(self) -> Any:
        return _verb(self.__name__.rpartition(".")[2]).__signature__


class _Package(ModuleType):
    """This package: some names are a part of it and a verb, whichever is used first."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _ALSO_PACKAGES and type(value) is ModuleType:
            value.__class__ = _CallablePackage
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
