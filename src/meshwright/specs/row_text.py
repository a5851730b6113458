"""The one-line form of a row read: tokens in any order, everything wrong with them at once."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from meshwright.errors import InputError, Problem, nearest
from meshwright.specs.row import (
    OFFLOAD_LETTERS,
    PlanRow,
    default_schedule,
    expert_tokens,
    offload_problems,
)
from meshwright.specs.shardings import SHARDINGS, grouped_shardings, plain_shardings
from meshwright.specs.strategy import RECOMPUTE_MODULES, TENSOR_OVERLAPS

_LEVEL = re.compile(r"^([a-z0-9]*[a-z])([0-9]{1,9})$")
MAX_TEXT = 500
"""Characters of the one-line form; every token there is, each once, takes fewer."""
_EXAMPLES = (
    "nosp",
    "tpov",
    "tpov-halves",
    "nodpov",
    "rc-none",
    "rc-sel",
    "rc-sel-moe_act",
    "rc-full",
    "rc-block4",
    "rc-uni4",
    "off-o",
    "tile1800000",
    "off-og",
    "off-og-nvme",
    "tp8",
    "tp2d2",
    "tp25d2x2",
    "tp3d2",
    "cp2",
    "pp4",
    "vpp2",
    "ep8",
)


def parse_row(text: str, *, devices: int, global_batch: int, schedules: tuple[str, ...]) -> PlanRow:
    """Read the one-line form of a plan.

    Args:
        text: tokens joined by dots, any order.
        devices: devices of the cluster; `dp` is what is left of them when it is not said.
        global_batch: sequences per step when `gbs` is not said.
        schedules: names that may stand as a schedule token, alone or with `-` and settings behind them.

    Returns:
        The row, degrees checked against the devices but not yet against a model.

    Raises:
        InputError: all unknown, repeated and contradictory tokens together.
    """
    if len(text) > MAX_TEXT:
        what = f"plan {text[:60]!r}... has {len(text):,} characters"
        fix = "write each degree and setting once, such as tp8.pp4.vpp2.dp16.z1.mbs1.rc-sel"
        raise InputError(what=what, why=f"at most {MAX_TEXT} are read", fix=fix, field="plan", code="MW210")
    said = _Said(text, schedules)
    for token in (part.strip() for part in text.strip().split(".")):
        said.read(token)
    said.without_zeros()
    if said.problems:
        from meshwright.specs.row_separators import with_dots  # few plans are wrong

        meant = with_dots(
            text, lambda again: parse_row(again, devices=devices, global_batch=global_batch, schedules=schedules)
        )
        raise InputError(
            [replace(one, fix=f"did you mean {meant}?") for one in said.problems[:1]] if meant else said.problems,
            code="MW210",
        )
    return said.row(devices, global_batch)


class _Said:
    """What the tokens of one plan say, and what is wrong with them."""

    def __init__(self, text: str, schedules: tuple[str, ...]) -> None:
        self.text, self.schedules = text, schedules
        self.fields: dict[str, Any] = {}
        self.problems: list[Problem] = []

    def put(self, name: str, value: object, token: str) -> None:
        """What a token says; that it says it a second time is a problem."""
        if name in self.fields:
            self.wrong(f"{token!r} says {name} a second time", fix="keep one of them")
        self.fields[name] = value

    def wrong(self, what: str, *, why: str = "", fix: str = "") -> None:
        self.problems.append(Problem(what=f"plan {self.text!r}: {what}", why=why, fix=fix, field="plan"))

    def read(self, token: str) -> None:
        """Take one token by the first kind that knows it."""
        for pattern, take in _BY_FORM:
            if (match := pattern.match(token)) and take(self, match):
                return
        if not (self.is_name(token) or self.is_of_data(token) or self.is_schedule(token)):
            self.unknown(token)

    def is_name(self, token: str) -> bool:
        """A sharding, what experts do, or a switch: one word, which says one field."""
        names = _SWITCHES | {name: ("sharding", name) for name in plain_shardings(*SHARDINGS)} | expert_tokens()
        if token in names:
            self.put(*names[token], token)
        return token in names

    def is_of_data(self, token: str) -> bool:
        """A word about gradients and data ranks; two of them may not say the same field."""
        from meshwright.specs.data_words import word_fields

        stated = word_fields(token)
        if not stated:
            return False
        words = self.fields.get("data_words", ())
        if again := next((one for one in words if stated.keys() & (word_fields(one) or {}).keys()), None):
            self.wrong(f"{token!r} beside {again!r}", fix="keep one of them")
        self.fields["data_words"] = (*words, token)
        return True

    def is_schedule(self, token: str) -> bool:
        """A schedule's name, alone or with settings behind it."""
        known = token in self.schedules or any(token.startswith(f"{name}-") for name in self.schedules)
        if known:
            self.put("schedule", token, token)
        return known

    def unknown(self, token: str) -> None:
        from meshwright.specs.data_words import DATA_WORDS

        names = (*_EXAMPLES, *expert_tokens(), *plain_shardings(*SHARDINGS), *DATA_WORDS, *self.schedules)
        close = nearest(token, names)
        like = "tokens look like tp8.pp4.vpp2.dp16.z1.mbs1.rc-sel"
        self.wrong(f"unknown token {token!r}", fix=f"did you mean {' or '.join(close)}?" if close else like)

    def without_zeros(self) -> None:
        """Refuse degrees and sizes of 0."""
        for name, value in self.fields.items():
            if type(value) is int and value < 1:
                self.wrong(f"{name} is 0", why="degrees and batches are at least 1")

    def row(self, devices: int, global_batch: int) -> PlanRow:
        """The plan; what is not said follows from the devices and the batch."""
        fields = {"gbs": global_batch} | self.fields
        if "data_words" in fields:
            from meshwright.specs.data_words import in_order

            fields["data_words"] = in_order(fields["data_words"])
        row = PlanRow(**fields)
        if "schedule" not in fields:
            row = replace(row, schedule=default_schedule(row.vpp))
        return row if "dp" in fields else replace(row, dp=max(1, devices // (row.tp * row.cp_degree * row.pp)))


_SWITCHES: dict[str, tuple[str, Any]] = {
    "nosp": ("sp", False),
    **{token: ("tp_overlap", overlap) for overlap, token in TENSOR_OVERLAPS.items()},
    "nodpov": ("dp_overlap", False),
}


def _counted(said: _Said, match: re.Match[str]) -> bool:
    said.put(match[1], int(match[2]), match[0])
    return True


def _tensor(said: _Said, match: re.Match[str]) -> bool:
    said.put("tp", int(match[1]), match[0])
    said.fields["tensor"] = match[2]
    return True


def _grid(said: _Said, match: re.Match[str]) -> bool:
    degree, said.fields["tensor"] = _parse_grid(match.string, said.text, said.problems)
    said.put("tp", degree, match.string)
    return True


def _context(said: _Said, match: re.Match[str]) -> bool:
    said.put("cp", _parse_cp(match, said.text, said.problems), match[0])
    return True


def _recompute(said: _Said, match: re.Match[str]) -> bool:
    said.put("recompute", re.sub(r"\d+$", "", match[1]), match[0])
    if match[2] or match[3]:
        said.fields["recompute_layers"] = int(match[2] or match[3])
    return True


def _recomputed_modules(said: _Said, match: re.Match[str]) -> bool:
    said.put("recompute", "sel", match[0])
    said.fields["recompute_modules"] = tuple(dict.fromkeys(match[1][1:].split("-")))
    return True


def _grouped_sharding(said: _Said, match: re.Match[str]) -> bool:
    if match[1] not in grouped_shardings():
        return False
    said.put("sharding", match[1], match[0])
    said.fields["shard_group"] = int(match[2])
    return True


def _offload(said: _Said, match: re.Match[str]) -> bool:
    letters = "".join(letter for letter in OFFLOAD_LETTERS if letter in match[1])
    said.put("offload", f"{letters}{match[2] or ''}{match[3] or ''}", match[0])
    said.problems += offload_problems(said.fields["offload"], f"plan {said.text!r}: ")
    return True


def _tile(said: _Said, match: re.Match[str]) -> bool:
    said.put("optimizer_tile", int(match[1]), match[0])
    return True


_BY_FORM: tuple[tuple[re.Pattern[str], Callable[[_Said, re.Match[str]], bool]], ...] = (
    (re.compile(r"^(tp|pp|vpp|ep|etp|dp|mbs|gbs)([0-9]{1,9})$"), _counted),
    (re.compile(r"^tp([0-9]{1,9})-([a-z0-9][a-z0-9.-]{0,30})$"), _tensor),
    (re.compile(r"^tp[0-9]{1,2}d[0-9]"), _grid),
    (re.compile(r"^cp([0-9]{1,9})(?:-([a-z0-9]{1,60}))?$"), _context),
    (re.compile(r"^rc-(none|sel|full|block([0-9]{1,9})|uni([0-9]{1,9}))$"), _recompute),
    (re.compile(rf"^rc-sel((?:-(?:{'|'.join(RECOMPUTE_MODULES)}))+)$"), _recomputed_modules),
    (re.compile(r"^([a-z][a-z0-9]*[a-z])([0-9]{1,9})$"), _grouped_sharding),
    (re.compile(r"^off-([waog]{1,4})(-nvme)?(-dpu)?$"), _offload),
    (re.compile(r"^tile([1-9][0-9]{0,11})$"), _tile),
)
"""Tokens with a number or with parts: how each is written, and who takes it. One that finds it is none leaves it."""


def _parse_grid(token: str, text: str, problems: list[Problem]) -> tuple[int, str]:
    """Ranks and strategy of a tensor group that is a grid."""
    from meshwright.specs.tensor_grids import GRIDS, grid_problem, grid_token

    named = grid_token(token)
    if named is None:
        grids = ", ".join(grid.token(grid.nearest(4)) for grid in GRIDS.values())
        what, why = f"plan {text!r}: unknown token {token!r}", "no tensor grid has this name"
        problems.append(Problem(what=what, why=why, fix=f"write one such as {grids}", field="plan"))
        return 1, "1d"
    grid, sides = named
    if wrong := grid_problem(grid, sides):
        why, fix = wrong
        problems.append(Problem(what=f"plan {text!r}: {token!r}", why=why, fix=fix, field="tp"))
        return 1, grid.name
    return grid.degree(*sides), grid.name


def _parse_cp(match: re.Match[str], text: str, problems: list[Problem]) -> tuple[tuple[str, int], ...]:
    degree, said = int(match[1]), match[2] or "p2p"
    if not degree:
        problems.append(Problem(what=f"plan {text!r}: cp is 0", why="degrees and batches are at least 1"))
        return ()
    parts = [_LEVEL.match(part) for part in said.split("x")]
    if len(parts) == 1:
        return ((said, degree),) if degree != 1 else ()
    levels = tuple((part[1], int(part[2])) for part in parts if part)
    product = math.prod(level for _, level in levels)
    if len(levels) < len(parts) or product != degree:
        shown = " x ".join(f"{kind}{level}" for kind, level in levels)
        problems.append(
            Problem(
                what=f"plan {text!r}: cp{degree} is not {shown}",
                why=f"{' x '.join(str(level) for _, level in levels)} = {product}",
                fix=f"write cp{product}-{shown.replace(' ', '')}",
            )
        )
    return tuple(level for level in levels if level[1] > 1)
