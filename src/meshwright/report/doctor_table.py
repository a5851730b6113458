"""The doctor's report as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwright.report.parts import facts_table, plain_row


def doctor_table(report: Mapping[str, Any]) -> RenderableType:
    """The `doctor` page.

    Args:
        report: a `meshwright.doctor/1`.
    """
    facts = facts_table()
    plain_row(facts, "meshwright", report["version"])
    plain_row(facts, "python", f"{report['python']} on {report['platform']}")
    plain_row(facts, "core", _versions(report["core"], "missing"))
    plain_row(facts, "optional", _versions(report["optional"], "not installed"))
    library = report["library"]
    counts = f"{library['models']} models, {library['devices']} devices, {library['schedules']} schedules"
    plain_row(facts, "library", counts)
    checks = Table.grid(padding=(0, 2))
    checks.add_column(no_wrap=True)
    checks.add_column(style="bold", no_wrap=True)
    checks.add_column(overflow="fold")
    for check in report["checks"]:
        mark = Text("ok", style="green") if check["ok"] else Text("FAILS", style="bold red")
        plain_row(checks, mark, check["name"], check["detail"])
    failed = sum(not check["ok"] for check in report["checks"])
    verdict = (
        "everything planning needs is here" if report["ok"] else f"{failed} of {len(report['checks'])} checks fail"
    )
    return Group(facts, Text(), checks, Text(), Text(verdict))


def _versions(packages: Mapping[str, str | None], otherwise: str) -> str:
    found = [f"{name} {version}" for name, version in packages.items() if version is not None]
    absent = [name for name, version in packages.items() if version is None]
    return ", ".join(found) + (f"{'; ' if found else ''}{otherwise}: {', '.join(absent)}" if absent else "")
