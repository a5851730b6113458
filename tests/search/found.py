"""What the search finds in the space of every schedule, with all of them and with each alone.

A process of its own, as in `brute`: there array shapes are not checked at every call.
"""

from __future__ import annotations

import json
import sys

from meshwright.schedules import PLAN_SCHEDULES
from meshwright.search.search import search
from meshwright.search.space import Space
from tests.search.spaces import CATALOGUE


def found(schedules: tuple[str, ...]) -> dict[str, object]:
    """Times of the best three layouts and the counts of the certificate."""
    space = Space(pins=tuple((dict(CATALOGUE.pins) | {"schedule": schedules}).items()))
    result = search(CATALOGUE.model, CATALOGUE.cluster, CATALOGUE.workload, space, top=3, refine=False)
    certificate = result.certificate
    return {
        "times": [plan.estimate.step_time_s for plan in result.plans],
        "space": certificate.space,
        "accounted": certificate.priced + sum(count for _, count in certificate.pruned),
    }


if __name__ == "__main__":
    alone = {name: found((name,)) for name in PLAN_SCHEDULES}
    json.dump({"all": found(PLAN_SCHEDULES), **alone}, sys.stdout)
