from meshwright.app.check import check
from meshwright.app.compare import compare
from meshwright.app.estimate import estimate
from meshwright.app.explain import explain
from meshwright.app.plan import plan
from meshwright.app.plan_set import PlanSet
from meshwright.app.size import size
from meshwright.app.trace import trace
from meshwright.specs.cluster import Island
from meshwright.specs.seam import ModelSlice, Parallelizer, PartialPlan

__version__: str

__all__ = [
    "Island",
    "ModelSlice",
    "Parallelizer",
    "PartialPlan",
    "PlanSet",
    "__version__",
    "check",
    "compare",
    "estimate",
    "explain",
    "plan",
    "size",
    "trace",
]
