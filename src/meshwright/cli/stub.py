"""The types of `meshwright` for editors and type checkers: `__init__.pyi`, made of the requests."""

from __future__ import annotations

import meshwright
from meshwright.app.verbs import VERBS, signature_of

ANSWERS = {
    "plan": "PlanSet",
    "estimate": "PlanSet",
    "check": "CheckReport",
    "xray": "Xray",
    "explain": "Explanation",
    "compare": "Comparison | RunComparison",
    "trace": "Trace",
    "report": "Report",
    "sweep": "Sweep",
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
HEAD = "import os\nfrom collections.abc import Callable, Iterable, Mapping\n\n"
NAMED = {
    "Calibrated": "app.calibrate",
    "FromLog": "app.runs.from_log",
    "CheckReport": "app.check",
    "Comparison": "app.compare",
    "Explanation": "app.explain",
    "Exported": "app.export",
    "Profile": "app.profile",
    "Run": "app.run",
    "StepDone": "app.run",
    "RunComparison": "app.runs.compared",
    "DrawnSchedules": "app.schedule",
    "SizeAnswer": "app.size",
    "Sweep": "app.sweep",
    "Report": "app.report",
    "Trace": "app.trace",
    "TuneAnswer": "app.tune",
    "Validation": "app.validate",
    "Verified": "app.verify",
    "Xray": "app.xray",
    "PlanLike": "planning.plan_source",
    "Calibration": "specs.calibration",
    "ClusterSpec": "specs.cluster",
    "DeviceSpec": "specs.device",
    "Failures": "specs.failures",
    "ModelSpec": "specs.model",
    "ExecutionPlan": "specs.plan",
    "PlanRow": "specs.row",
    "ExpertLoad": "specs.expert_load",
    "Lora": "specs.tuning",
    "Workload": "specs.workload",
}
"""What the signatures name, and where it is."""


def stub() -> str:
    """The text of `__init__.pyi`."""
    package = vars(meshwright)
    homes = {**package["_HOMES"], **package["_WITH_JAX"]}
    read: dict[str, list[str]] = {}
    for home, name in sorted((home, name) for name, home in NAMED.items()):
        read.setdefault(home, []).append(name)
    lines = [(home, ", ".join(names)) for home, names in read.items()]
    lines += [(home, f"{name} as {name}") for name, home in homes.items()]
    imports = "\n".join(f"from meshwright.{home} import {names}" for home, names in sorted(lines))
    verbs = "\n".join(_signature(verb) for verb in package["_VERBS"])
    return f"# Written by meshwright.cli.stub.\n{HEAD}{imports}\n\n__version__: str\n\n{verbs}\n"


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
