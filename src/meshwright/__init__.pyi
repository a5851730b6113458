from meshwright.app.check import check
from meshwright.app.compare import compare
from meshwright.app.estimate import estimate
from meshwright.app.explain import explain
from meshwright.app.plan import plan
from meshwright.app.plan_set import PlanSet
from meshwright.app.size import size
from meshwright.app.trace import trace
from meshwright.compiler.marking import grad, value_and_grad
from meshwright.compiler.methods import (
    DataParallel,
    LocalPipeline,
    PipeshardParallel,
    ShardParallel,
    Zero2Parallel,
    Zero3Parallel,
)
from meshwright.runtime.checkpoint import restore_checkpoint, save_checkpoint
from meshwright.runtime.parallelize import parallelize
from meshwright.specs.cluster import Island
from meshwright.specs.seam import ModelSlice, Parallelizer, PartialPlan

__version__: str

__all__ = [
    "DataParallel",
    "Island",
    "LocalPipeline",
    "ModelSlice",
    "Parallelizer",
    "PartialPlan",
    "PipeshardParallel",
    "PlanSet",
    "ShardParallel",
    "Zero2Parallel",
    "Zero3Parallel",
    "__version__",
    "check",
    "compare",
    "estimate",
    "explain",
    "grad",
    "parallelize",
    "plan",
    "restore_checkpoint",
    "save_checkpoint",
    "size",
    "trace",
    "value_and_grad",
]
