from meshwright.app.check import check
from meshwright.app.compare import compare
from meshwright.app.estimate import estimate
from meshwright.app.explain import explain
from meshwright.app.plan import plan
from meshwright.app.plan_set import PlanSet
from meshwright.app.size import size
from meshwright.app.trace import trace
from meshwright.compiler.marking import grad, layer_boundary, value_and_grad
from meshwright.compiler.methods import (
    Auto,
    DataParallel,
    FromPlan,
    LocalPipeline,
    PipeshardParallel,
    ShardParallel,
    Zero2Parallel,
    Zero3Parallel,
)
from meshwright.compiler.stages.hosts import Hosts
from meshwright.compiler.stages.islands import Islands
from meshwright.compiler.stages.picture import stages_svg
from meshwright.compiler.stages.plan import StagesPlan
from meshwright.compiler.stages.search import plan_step
from meshwright.runtime.checkpoint import restore_checkpoint, save_checkpoint
from meshwright.runtime.parallelize import parallelize
from meshwright.specs.cluster import Island
from meshwright.specs.seam import ModelSlice, Parallelizer, PartialPlan

__version__: str

__all__ = [
    "Auto",
    "DataParallel",
    "FromPlan",
    "Hosts",
    "Island",
    "Islands",
    "LocalPipeline",
    "ModelSlice",
    "Parallelizer",
    "PartialPlan",
    "PipeshardParallel",
    "PlanSet",
    "ShardParallel",
    "StagesPlan",
    "Zero2Parallel",
    "Zero3Parallel",
    "__version__",
    "check",
    "compare",
    "estimate",
    "explain",
    "grad",
    "layer_boundary",
    "parallelize",
    "plan",
    "plan_step",
    "restore_checkpoint",
    "save_checkpoint",
    "size",
    "stages_svg",
    "trace",
    "value_and_grad",
]
