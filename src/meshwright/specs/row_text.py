"""The one-line form of a row read: tokens in any order, everything wrong with them at once."""

from __future__ import annotations

import math
import re
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
from meshwright.specs.strategy import RECOMPUTE_MODULES

_COUNTED = re.compile(r"^(tp|pp|vpp|ep|etp|dp|mbs|gbs)([0-9]{1,9})$")
_TENSOR = re.compile(r"^tp([0-9]{1,9})-([a-z0-9][a-z0-9.-]{0,30})$")
_GRID = re.compile(r"^tp[0-9]{1,2}d[0-9]")
_CP = re.compile(r"^cp([0-9]{1,9})(?:-([a-z0-9]{1,60}))?$")
_LEVEL = re.compile(r"^([a-z0-9]*[a-z])([0-9]{1,9})$")
_RECOMPUTE = re.compile(r"^rc-(none|sel|full|block([0-9]{1,9})|uni([0-9]{1,9}))$")
_MODULES = re.compile(rf"^rc-sel((?:-(?:{'|'.join(RECOMPUTE_MODULES)}))+)$")
_GROUPED = re.compile(r"^([a-z][a-z0-9]*[a-z])([0-9]{1,9})$")
_OFFLOAD = re.compile(r"^off-([waog]{1,4})(-nvme)?(-dpu)?$")
_TILE = re.compile(r"^tile([1-9][0-9]{0,11})$")
MAX_TEXT = 500
"""Characters of the one-line form; every token there is, each once, takes fewer."""
_EXAMPLES = (
    "nosp",
    "tpov",
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
    from meshwright.specs.data_words import DATA_WORDS, in_order, word_fields

    fields: dict[str, Any] = {}
    problems: list[Problem] = []

    def put(name: str, value: object, token: str) -> None:
        if name in fields:
            problems.append(Problem(what=f"plan {text!r}: {token!r} says {name} a second time", fix="keep one of them"))
        fields[name] = value

    for token in (part.strip() for part in text.strip().split(".")):
        if match := _COUNTED.match(token):
            put(match[1], int(match[2]), token)
        elif match := _TENSOR.match(token):
            put("tp", int(match[1]), token)
            fields["tensor"] = match[2]
        elif _GRID.match(token):
            degree, fields["tensor"] = _parse_grid(token, text, problems)
            put("tp", degree, token)
        elif match := _CP.match(token):
            put("cp", _parse_cp(match, text, problems), token)
        elif match := _RECOMPUTE.match(token):
            put("recompute", re.sub(r"\d+$", "", match[1]), token)
            if match[2] or match[3]:
                fields["recompute_layers"] = int(match[2] or match[3])
        elif match := _MODULES.match(token):
            put("recompute", "sel", token)
            fields["recompute_modules"] = tuple(dict.fromkeys(match[1][1:].split("-")))
        elif (match := _GROUPED.match(token)) and match[1] in grouped_shardings():
            put("sharding", match[1], token)
            fields["shard_group"] = int(match[2])
        elif match := _OFFLOAD.match(token):
            letters = "".join(letter for letter in OFFLOAD_LETTERS if letter in match[1])
            put("offload", f"{letters}{match[2] or ''}{match[3] or ''}", token)
            problems += offload_problems(fields["offload"], f"plan {text!r}: ")
        elif token in plain_shardings(*SHARDINGS):
            put("sharding", token, token)
        elif token in expert_tokens():
            put(*expert_tokens()[token], token)
        elif token == "nosp":
            put("sp", False, token)
        elif token == "tpov":
            put("tp_overlap", "ring", token)
        elif match := _TILE.match(token):
            put("optimizer_tile", int(match[1]), token)
        elif token == "nodpov":
            put("dp_overlap", False, token)
        elif stated := word_fields(token):
            again = next(
                (
                    word
                    for word in fields.get("data_words", ())
                    if not stated.keys().isdisjoint(word_fields(word) or {})
                ),
                "",
            )
            if again:
                problems.append(
                    Problem(what=f"plan {text!r}: {token!r} beside {again!r}", fix="keep one of them", field="plan")
                )
            fields["data_words"] = (*fields.get("data_words", ()), token)
        elif token in schedules or any(token.startswith(f"{name}-") for name in schedules):
            put("schedule", token, token)
        else:
            close = nearest(
                token, (*_EXAMPLES, *expert_tokens(), *plain_shardings(*SHARDINGS), *DATA_WORDS, *schedules)
            )
            fix = (
                f"did you mean {' or '.join(close)}?" if close else "tokens look like tp8.pp4.vpp2.dp16.z1.mbs1.rc-sel"
            )
            problems.append(Problem(what=f"plan {text!r}: unknown token {token!r}", fix=fix, field="plan"))
    zero = [
        name for name, value in fields.items() if isinstance(value, int) and not isinstance(value, bool) and value < 1
    ]
    problems += [Problem(what=f"plan {text!r}: {name} is 0", why="degrees and batches are at least 1") for name in zero]
    if problems:
        from meshwright.specs.row_separators import with_dots  # few plans are wrong

        meant = with_dots(
            text, lambda again: parse_row(again, devices=devices, global_batch=global_batch, schedules=schedules)
        )
        raise InputError(
            [replace(one, fix=f"did you mean {meant}?") for one in problems[:1]] if meant else problems, code="MW210"
        )

    fields.setdefault("gbs", global_batch)
    if "data_words" in fields:
        fields["data_words"] = in_order(fields["data_words"])
    row = PlanRow(**fields)
    if "schedule" not in fields:
        row = replace(row, schedule=default_schedule(row.vpp))
    model_parallel = row.tp * row.cp_degree * row.pp
    if "dp" not in fields:
        row = replace(row, dp=max(1, devices // model_parallel))
    return row


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
