"""Acceptance of many executions: rules are looked at once per class of layouts and class of settings.

Layouts that break the same rules with the same settings are one class, and so are settings; which rule a pair breaks
first is found once per pair of classes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.calculon.executions import KEYS, ExecutionColumns
from meshwright.calculon.factored import LAYOUT_KEYS, SETTING_KEYS, FactoredRows
from meshwright.calculon.inputs import Application, System
from meshwright.calculon.legality import LATER, RULES, AcceptanceRule, reject
from meshwright.search.distinct import distinct
from meshwright.search.parts import in_parts
from meshwright.shapes import Int


def reject_factored(app: Application, system: System, rows: FactoredRows) -> Int[np.ndarray, "rows"] | None:
    """What `legality.reject` answers, row by row; none where a value makes rules meaningless, such as a degree of 0."""
    none = np.zeros(1, dtype=np.int64)
    # A layout with any setting, and a setting with any layout: rules that read one of the two are settled by them.
    if rows.layouts.rows and _unsound(app, system, rows):
        return None
    of_layouts: list[np.ndarray] = [np.zeros(rows.layouts.rows, dtype=np.int64)]
    of_settings: list[np.ndarray] = [np.zeros(rows.settings.rows, dtype=np.int64)]
    for rule in RULES[LATER:]:
        read = _keys_read(rule, app, system, rows.pairs(none, none))
        layout_keys = [key for key in LAYOUT_KEYS if key in read]
        setting_keys = [key for key in SETTING_KEYS if key in read]
        outer = distinct([of_layouts[0], *(getattr(rows.layouts, key) for key in layout_keys)])
        inner = distinct([of_settings[0], *(getattr(rows.settings, key) for key in setting_keys)])
        ways = len(inner.example)
        first, second = np.divmod(np.arange(len(outer.example) * ways), ways)
        pairs = rows.pairs(outer.example[first], inner.example[second])
        broken = rule.broken(app, system, pairs).reshape(-1, ways)
        if broken.any():
            of_layouts.append(_kinds(broken)[outer.index])
            of_settings.append(_kinds(broken.T)[inner.index])
    outer, inner = distinct(of_layouts), distinct(of_settings)
    ways = len(inner.example)
    first, second = np.divmod(np.arange(len(outer.example) * ways), ways)
    code = reject(app, system, rows.pairs(outer.example[first], inner.example[second]))
    start, reason = outer.index * ways, np.empty(rows.rows, dtype=np.int8)

    def one(part: slice) -> None:
        reason[part] = code[start[rows.layout[part]] + inner.index[rows.setting[part]]]

    in_parts(rows.rows, one)
    return reason


def _unsound(app: Application, system: System, rows: FactoredRows) -> bool:
    """Whether some layout or setting breaks a rule that makes the later ones meaningless."""
    layouts, settings = np.arange(rows.layouts.rows), np.arange(rows.settings.rows)
    return any(
        rule.broken(app, system, rows.pairs(layouts, np.zeros_like(layouts))).any()
        or rule.broken(app, system, rows.pairs(np.zeros_like(settings), settings)).any()
        for rule in RULES[:LATER]
    )


def _kinds(broken: np.ndarray) -> Int[np.ndarray, "rows"]:
    """Rows of a table by what is in them."""
    return np.unique(broken, axis=0, return_inverse=True)[1].reshape(-1)


class _Noted(ExecutionColumns):
    """Columns that note which of their keys are read."""

    def __init__(self, columns: ExecutionColumns, read: set[str]) -> None:
        super().__init__(**{key: getattr(columns, key) for key in KEYS})
        object.__setattr__(self, "read", read)

    def __getattribute__(self, name: str) -> Any:
        if name in KEYS and "read" in object.__getattribute__(self, "__dict__"):
            object.__getattribute__(self, "read").add(name)
        return super().__getattribute__(name)


def _keys_read(rule: AcceptanceRule, app: Application, system: System, columns: ExecutionColumns) -> set[str]:
    """The keys a rule reads; they depend on application and system, not on the rows."""
    read: set[str] = set()
    rule.broken(app, system, _Noted(columns, read))
    return read
