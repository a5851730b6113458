"""Small questions that the tests of the verbs share; each answer is found once."""

from __future__ import annotations

from functools import cache

from meshwright import plan
from meshwright.app.plans.plan_set import PlanSet

MODEL = "llama-3-8b"
GPUS = "8xH100"
BATCH = 64
"""Small, so that there are few micro-batch sizes to look at."""


@cache
def best_plans(top: int = 5) -> PlanSet:
    """The best plans of an 8B model on one node."""
    return plan(MODEL, gpus=GPUS, top=top, global_batch=BATCH)
