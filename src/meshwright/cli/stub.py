"""The types of `meshwright` for editors and type checkers: `__init__.pyi`, made of the requests."""

from __future__ import annotations

import meshwright
from meshwright.app.verbs import VERBS, signature_of

ANSWERS = {
    "plan": "PlanSet",
    "estimate": "PlanSet",
    "check": "CheckReport",
    "explain": "Explanation",
    "compare": "Comparison",
    "trace": "Trace",
    "size": "SizeAnswer",
    "tune": "TuneAnswer",
    "export": "Exported",
    "schedule": "DrawnSchedules",
    "validate": "Validation",
    "calibrate": "Calibrated | FromLog",
    "profile": "Profile",
    "run": "Run",
    "verify": "Verified",
}
"""What each verb returns."""
NAMES = """import os
from collections.abc import Iterable

from meshwright.app.calibrate import Calibrated
from meshwright.app.calibrate_from_log import FromLog
from meshwright.app.check import CheckReport
from meshwright.app.compare import Comparison
from meshwright.app.explanation import Explanation
from meshwright.app.export import Exported
from meshwright.app.profile import Profile
from meshwright.app.run import Run
from meshwright.app.schedule import DrawnSchedules
from meshwright.app.size import SizeAnswer
from meshwright.app.trace import Trace
from meshwright.app.tune import TuneAnswer
from meshwright.app.validate import Validation
from meshwright.app.verify import Verified
from meshwright.planning.plan_source import PlanLike
from meshwright.specs.calibration import Calibration
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.device import DeviceSpec
from meshwright.specs.failures import Failures
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow
from meshwright.specs.tuning import Lora
from meshwright.specs.workload import Workload
"""
"""What the signatures name."""


def stub() -> str:
    """The text of `__init__.pyi`."""
    package = vars(meshwright)
    homes = {**package["_HOMES"], **package["_WITH_JAX"]}
    others = "\n".join(f"from meshwright.{home} import {name} as {name}" for name, home in sorted(homes.items()))
    verbs = "\n".join(_signature(verb) for verb in package["_VERBS"])
    return f"# Written by meshwright.cli.stub.\n{NAMES}{others}\n\n__version__: str\n\n{verbs}\n"


def _signature(verb: str) -> str:
    parameters = signature_of(VERBS[verb].request).parameters.values()
    lines, keyword = [], False
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and not keyword:
            lines.append("    *,")
            keyword = True
        lines.append(f"    {one.name}: {one.annotation} = ...,")
    return "\n".join([f"def {verb}(", *lines, f") -> {ANSWERS[verb]}: ..."])


if __name__ == "__main__":
    print(stub(), end="")
