"""Why the model rejects an execution: field, value, rule and remedy."""

from __future__ import annotations

from dataclasses import fields

from meshwright.calculon.inputs import CHOICES, Application, Execution, System
from meshwright.calculon.legality import MEMORY_TIER1, MEMORY_TIER2, RULES, AcceptanceRule
from meshwright.calculon.statistics import CalculonColumns
from meshwright.errors import Problem, nearest

EXECUTION_FIELDS = frozenset(field.name for field in fields(Execution))


def reason(
    app: Application,
    system: System,
    execution: Execution,
    code: int,
    *,
    tier1_bytes: float = 0.0,
    tier2_bytes: float = 0.0,
) -> Problem:
    """Field, value, rule and remedy of a rejection.

    Args:
        app: the application.
        system: the system.
        execution: the rejected row.
        code: the code of `reject` or of `price`.
        tier1_bytes: need of the first memory tier, where that is the reason.
        tier2_bytes: the bytes of tier 2 of the second.
    """
    rule = RULES[code]
    if code in (MEMORY_TIER1, MEMORY_TIER2):
        tier, need = (1, tier1_bytes) if code == MEMORY_TIER1 else (2, tier2_bytes)
        capacity = (system.mem1 if tier == 1 else system.mem2).capacity_bytes
        what = f"{rule.field} is {need / 2**30:,.3f} GiB, memory tier {tier} has {capacity / 2**30:,.3f} GiB"
        return Problem(what=what, why=rule.text, fix=rule.fix, field=rule.field)
    names = rule.field.split(", ")
    values = {name: getattr(execution, name) for name in names if name in EXECUTION_FIELDS}
    what = ", ".join(f"{name} is {_shown(value)}" for name, value in values.items())
    fix = rule.fix
    key = names[0]
    if key in CHOICES and isinstance(values[key], str) and values[key] not in CHOICES[key]:
        close = nearest(values[key], CHOICES[key])
        fix = f"did you mean {' or '.join(close)}?" if close else fix
    return Problem(what=what + _context(app, system, execution, rule), why=rule.text, fix=fix, field=rule.field)


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _context(app: Application, system: System, execution: Execution, rule: AcceptanceRule) -> str:
    """The numbers beside the field's that the rule compares it with."""
    text = rule.text
    shown: dict[str, object] = {}
    for name in ("hidden", "feedforward", "attn_heads", "kv_heads", "num_blocks", "seq_size"):
        if name in text:
            shown[name] = getattr(app, name)
    for name in ("batch_size", "data_par", "pipeline_par", "microbatch_size"):
        if name in text and name not in rule.field:
            shown[name] = getattr(execution, name)
    if "networks" in text or "network " in text:
        shown["degrees"] = f"{execution.tensor_par} x {execution.pipeline_par} x {execution.data_par}"
        shown["network sizes"] = ", ".join(str(network.size) for network in system.networks)
    if "engines" in text:
        shown["datatypes of the system"] = ", ".join(name for name in system.matrix if name in system.vector)
    return f" ({', '.join(f'{name} {value}' for name, value in shown.items())})" if shown else ""


def rejection(priced: CalculonColumns, row: int, app: Application, system: System, execution: Execution) -> Problem:
    """Why an execution among priced ones is rejected.

    Args:
        priced: the executions.
        row: the row of the rejected one.
        app: the application.
        system: the system.
        execution: the rejected one.
    """
    return reason(
        app,
        system,
        execution,
        int(priced.reason[row]),
        tier1_bytes=float(priced["proc_mem_tier1_cap_req"][row]),
        tier2_bytes=float(priced["proc_mem_tier2_cap_req"][row]),
    )
