"""Changes of one setting of a row: the neighbours of a plan, and what might repair one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from meshwright.schedules import DEFAULT_SCHEDULES, schedule_named
from meshwright.schedules.plan_rows import usual_schedule
from meshwright.search.axes import SEARCHED_OVERLAPS, selective_words
from meshwright.search.table import divisors
from meshwright.specs.dispatchers import ALLTOALL, searched_dispatchers
from meshwright.specs.model import ModelSpec
from meshwright.specs.precision import Precision
from meshwright.specs.row import PlanRow, default_schedule, offload_of, recompute_fields
from meshwright.specs.shardings import SHARDINGS, plain_shardings, ungrouped

MORE_AWAY = ("aog", "wog", "waog")
"""What may be away besides the optimizer and its gradients."""
TILE = 1_800_000
"""Parameters that an optimizer updates at a time (Singh et al., DeepSpeed-TED, ICS 2023)."""
DEGREES = ("tp", "cp", "pp", "ep", "etp")
_SHOWN = ("tp", "cp", "pp", "vpp", "ep", "etp", "dp", "sharding", "mbs", "gbs", "recompute", "offload",
          "optimizer_tile")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting changed, the data degree and the chunks following it."""

    lever: str
    row: PlanRow
    text: str
    """`tp 4 -> 8 (dp 4 -> 2)`."""
    changes_training: bool = False
    """Whether the optimizer sees other steps, as with another global batch."""


def neighbours(row: PlanRow, model: ModelSpec, devices: int) -> Iterator[Change]:
    """All rows one change away, legal or not, each once.

    Args:
        row: the plan.
        model: the model for layers and experts.
        devices: the number of devices that the rows use; the data degree takes what the others leave.
    """
    seen = {row}
    for lever, changed in _variants(row, model, devices):
        if changed not in seen:
            seen.add(changed)
            yield Change(lever=lever, row=changed, text=describe(row, changed))


def repairs(row: PlanRow, model: ModelSpec, devices: int, precision: Precision) -> Iterator[Change]:
    """Rows that may repair an illegal or too large one: the data degree that is left, one change, other batches.

    Args:
        row: the plan.
        model: the model for layers and experts.
        devices: the number of devices that the rows use.
        precision: the precision of the workload: tiles of the optimizer help where it reads a copy of all gradients.
    """
    fixed = with_data_degree(row, devices)
    seen = {row}
    tiled = [("optimizer_tile", replace(fixed, optimizer_tile=TILE))] if precision.copies_gradients else []
    variants = (*_variants(fixed, model, devices), *tiled, *_nearest_degrees(fixed, model, devices))
    for lever, changed in (("dp", fixed), *variants):
        if changed not in seen and not (changed.optimizer_tile and _copies_none(changed)):
            seen.add(changed)
            yield Change(lever=lever, row=changed, text=describe(row, changed))
    step = fixed.dp * fixed.mbs
    for batch in {row.gbs // step * step, -(-row.gbs // step) * step} - {0, row.gbs}:
        changed = replace(fixed, gbs=batch)
        if changed not in seen:
            yield Change(lever="gbs", row=changed, text=describe(row, changed), changes_training=True)


def _copies_none(row: PlanRow) -> bool:
    """Whether the update makes no copy of gradients: its shard is in fp32 already, or the host has it."""
    return SHARDINGS[row.sharding].family == "fsdp" or bool(offload_of(row.offload).optimizer)


def with_data_degree(row: PlanRow, devices: int) -> PlanRow:
    """The row with the data degree that its other degrees leave of the devices, HSDP groups and chunks kept legal."""
    dp = max(1, devices // (row.tp * row.cp_degree * row.pp))
    changed = replace(row, dp=dp)
    kind = SHARDINGS[changed.sharding]
    if kind.grouped:
        shard = max(1, changed.shard_group // changed.cp_degree)
        if dp % shard or shard >= dp:
            changed = replace(changed, sharding=ungrouped(kind)[0], shard_group=0)
    if changed.pp == 1 and changed.vpp > 1:
        changed = replace(changed, vpp=1)
    if changed.tp == 1:
        changed = replace(changed, tp_overlap="bulk", sp=True)
    if changed.ep == 1:
        changed = replace(changed, dispatcher=ALLTOALL, ep_overlap="none", hot_experts="kept", ep_chunks=1)
        changed = replace(changed, drop_duplicates=False, stash_collectives=False, prioritised=False)
    usual = changed.schedule in (default_schedule(1), default_schedule(2))
    return replace(changed, schedule=_usual_schedule(changed)) if usual else changed


def describe(before: PlanRow, after: PlanRow) -> str:
    """What changed, the lever first: `tp 4 -> 8 (dp 4 -> 2)`."""
    parts = []
    for name in _SHOWN:
        old, new = _said(before, name), _said(after, name)
        if old != new:
            numbers = new.removeprefix(name).isdigit()
            old, new = (old.removeprefix(name), new.removeprefix(name)) if numbers else (old, new)
            parts.append(f"{name} {old} -> {new}" if numbers else f"{old} -> {new}")
    for name in ("tp_overlap", "sp", "dispatcher", "ep_overlap", "hot_experts", "schedule", "dp_overlap"):
        if getattr(before, name) != getattr(after, name):
            follows = all(row.schedule == _usual_schedule(row) for row in (before, after))
            if name != "schedule" or not follows:
                parts.append(_switch(name, after))
    lead = [part for part in parts if not part.startswith(("dp ", "vpp "))] or parts
    rest = [part for part in parts if part not in lead]
    return ", ".join(lead) + (f" ({', '.join(rest)})" if rest else "")


def _switch(name: str, row: PlanRow) -> str:
    if name == "tp_overlap":
        return "overlap tensor traffic" if row.tp_overlap == "ring" else "without tpov"
    if name == "sp":
        return "with sequence parallelism" if row.sp else "nosp"
    if name == "schedule":
        return f"schedule {row.schedule}"
    if name == "dispatcher":
        return f"{row.dispatcher} dispatcher"
    if name == "hot_experts":
        return f"hot experts {row.hot_experts}"
    if name == "ep_overlap":
        return "exchanges exposed" if row.ep_overlap == "none" else f"exchanges hidden: {row.ep_overlap}"
    return "overlap data-parallel traffic" if row.dp_overlap else "nodpov"


def _said(row: PlanRow, name: str) -> str:
    if name == "cp":
        kinds = "x".join(f"{kind}{degree}" if len(row.cp) > 1 else kind for kind, degree in row.cp)
        return f"cp{row.cp_degree}" + (f"-{kinds}" if kinds not in ("", "p2p") else "")
    if name == "sharding":
        return row.sharding_word
    if name == "recompute":
        return f"rc-{row.recompute_word}"
    if name == "offload":
        return f"off-{row.offload}" if row.offload else "no offload"
    if name == "optimizer_tile":
        return f"updates in tiles of {row.optimizer_tile:,}" if row.optimizer_tile else "whole updates"
    return f"{name}{getattr(row, name)}"


def _variants(row: PlanRow, model: ModelSpec, devices: int) -> Iterator[tuple[str, PlanRow]]:
    """One lever moved: the degrees, then what a stage and a step do with them."""
    yield from _degree_variants(row, model, devices)
    for mbs in _doubled_and_halved(row.mbs):
        yield "mbs", with_micro_batch(row, mbs)
    yield from _chunk_variants(row, model)
    yield from _memory_variants(row, model)
    if row.ep > 1:
        for dispatcher in searched_dispatchers():
            yield "dispatcher", replace(row, dispatcher=dispatcher)
        for overlap in SEARCHED_OVERLAPS:
            yield "ep_overlap", replace(row, ep_overlap=overlap)
    if row.tp > 1:
        yield "tp_overlap", replace(row, tp_overlap="bulk" if row.tp_overlap == "ring" else "ring")
    if row.schedule != _usual_schedule(row):
        yield "schedule", replace(row, schedule=_usual_schedule(row))
    elif row.pp > 1 and row.vpp == 1:
        for name in DEFAULT_SCHEDULES:
            if name != row.schedule and schedule_named(name).fewest_chunks(row.pp, row.micro_batches) == 1:
                yield "schedule", replace(row, schedule=name)
    yield from (("offload", replace(row, offload=token)) for token in _offloads(row.offload))


def _offloads(token: str) -> Iterator[str]:
    """Larger offloads: from nothing, the optimizer without and with its gradients; else nothing, and the next part."""
    if not token:
        yield from ("o", "og")
        return
    letters, *words = token.split("-")
    yield ""
    larger = next((more for more in ("og", *MORE_AWAY) if set(letters) < set(more)), None)
    if larger is not None:
        yield "-".join((larger, *words))


def _degree_variants(row: PlanRow, model: ModelSpec, devices: int) -> Iterator[tuple[str, PlanRow]]:
    for name in ("tp", "pp", "cp", "ep", "etp"):
        if name not in ("ep", "etp") or model.is_moe:
            for wanted in _doubled_and_halved(row.cp_degree if name == "cp" else getattr(row, name)):
                yield name, with_degree(row, name, wanted, devices)


def _memory_variants(row: PlanRow, model: ModelSpec) -> Iterator[tuple[str, PlanRow]]:
    """Recompute of none, some and all layers, and every sharding."""
    per_chunk = -(-model.num_layers // (row.pp * row.vpp))
    quarters = sorted({-(-per_chunk * quarter // 4) for quarter in (1, 2, 3)} - {0, per_chunk})
    selective = selective_words(model)[0]
    for word, layers in (("none", 0), (selective, 0), *(("block", k) for k in quarters), ("full", 0)):
        yield "recompute", replace(row, **recompute_fields(word), recompute_layers=layers)
    if row.dp * row.cp_degree > 1:
        for sharding in plain_shardings():
            yield "sharding", replace(row, sharding=sharding, shard_group=0)


def _doubled_and_halved(number: int) -> Iterator[int]:
    yield number * 2
    if number % 2 == 0:
        yield number // 2


def _chunk_variants(row: PlanRow, model: ModelSpec) -> Iterator[tuple[str, PlanRow]]:
    if row.pp == 1:
        return
    most = model.most_stages // row.pp
    for vpp in sorted({1, row.vpp - 1, row.vpp + 1, row.vpp // 2, row.vpp * 2} & set(range(1, most + 1))):
        yield "vpp", with_chunks(row, vpp)


def with_chunks(row: PlanRow, vpp: int) -> PlanRow:
    """The row with so many chunks per worker, in its own schedule where that takes them."""
    refused = schedule_named(row.schedule).problems(row.pp, row.micro_batches, vpp)
    return replace(row, vpp=vpp, schedule=usual_schedule(row.pp, row.micro_batches, vpp) if refused else row.schedule)


def with_micro_batch(row: PlanRow, mbs: int) -> PlanRow:
    """The row with micro-batches of so many sequences, in the groups that their number needs."""
    changed = replace(row, mbs=mbs)
    return replace(changed, schedule=_usual_schedule(changed)) if row.schedule == _usual_schedule(row) else changed


def with_open_groups(row: PlanRow) -> PlanRow:
    """The row with the schedule that is settled for its number of micro-batches left open, as one that will change."""
    return replace(row, schedule=default_schedule(row.vpp)) if row.schedule == _usual_schedule(row) else row


def _usual_schedule(row: PlanRow) -> str:
    return usual_schedule(row.pp, row.micro_batches, row.vpp)


def with_degree(row: PlanRow, name: str, degree: int, devices: int) -> PlanRow:
    """One degree changed, the data degree taking the rest."""
    row = with_open_groups(row)
    if name == "cp":
        kind = row.cp[0][0] if len(row.cp) == 1 else "p2p"
        row = replace(row, cp=((kind, degree),) if degree > 1 else ())
    else:
        row = replace(row, **{name: degree})  # type: ignore[arg-type]
    return with_data_degree(row, devices)


def _nearest_degrees(row: PlanRow, model: ModelSpec, devices: int) -> Iterator[tuple[str, PlanRow]]:
    """Degrees that divide the devices, nearest first: for one that cannot stay as it is."""
    for name in DEGREES:
        if name in ("ep", "etp") and not model.is_moe:
            if getattr(row, name) != 1:
                yield name, replace(row, **{name: 1})  # type: ignore[arg-type]
            continue
        degree = row.cp_degree if name == "cp" else getattr(row, name)
        for wanted in sorted(divisors(devices), key=lambda d: abs(d - degree))[:6]:
            yield name, with_degree(row, name, wanted, devices)
    local = row.gbs // row.dp
    if local:
        for mbs in sorted(divisors(local), key=lambda d: abs(d - row.mbs))[:3]:
            yield "mbs", replace(row, mbs=mbs)
    if row.vpp > 1:
        yield "vpp", with_chunks(row, 1)


def distance(before: PlanRow, after: PlanRow) -> int:
    """How many fields of two rows differ."""
    return sum(getattr(before, f.name) != getattr(after, f.name) for f in fields(PlanRow))
