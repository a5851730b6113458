"""What the items of a model cost under every strategy: seconds and bytes of each, per micro-batch on one device."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np

from meshwright.estimate.hardware import Hardware
from meshwright.estimate.layers.groups import Groups
from meshwright.estimate.layers.items import NONE, TILED, Item, repeated_modules, with_tiles, works_of
from meshwright.estimate.layers.states import Extras, extras, has_extras, minus
from meshwright.estimate.layers.work import price_work
from meshwright.estimate.layers.work_seconds import ModuleSeconds, WorkSeconds
from meshwright.ops.edges import edge_work
from meshwright.shapes import Float, Int
from meshwright.specs.model import ModelSpec
from meshwright.specs.operators import LayerWork, Linear, Vector
from meshwright.specs.software import Software
from meshwright.specs.strategy import HALF_PRODUCTS, Recompute
from meshwright.specs.tuning import BITSANDBYTES, MADE_AGAIN_BYTES, STORED_BYTES
from meshwright.specs.workload import Workload
from meshwright.strategies.columns import StrategyColumns, local_units
from meshwright.strategies.memory import kept_bytes, made_again_bytes, tensor_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemCosts:
    """Costs per micro-batch on one device, one row per strategy and one column per item."""

    forward_s: Float[np.ndarray, "rows items"]
    backward_s: Float[np.ndarray, "rows items"]
    """Both gradients and what is recomputed."""
    weight_gradient_s: Float[np.ndarray, "rows items"]
    recompute_s: Float[np.ndarray, "rows items"]
    tp_s: Float[np.ndarray, "rows items"]
    """Exposed, forward and backward."""
    cp_s: Float[np.ndarray, "rows items"]
    ep_s: Float[np.ndarray, "rows items"]
    meeting_s: Float[np.ndarray, "rows items"]
    """The part of `ep_s` in exchanges of a backward that share their links with gradients on their way."""
    ahead_s: Float[np.ndarray, "rows items"]
    """The part of `ep_s` in exchanges of a backward that go before gradients."""
    host_s: Float[np.ndarray, "rows items"]
    """Waiting for the host to issue kernels."""
    offload_s: Float[np.ndarray, "rows items"]
    """Waiting for copies to and from the host."""
    hidden_s: Float[np.ndarray, "rows items"]
    """Exchanges hidden beside another micro-batch; exposed in a forward and a backward that run alone."""
    lockstep_forward_s: Float[np.ndarray, "rows items"]
    """Waiting for ranks with more attended pairs where weights are gathered layer by layer."""
    lockstep_backward_s: Float[np.ndarray, "rows items"]
    uneven_s: Float[np.ndarray, "rows items"]
    """Attention of a mean micro-batch where micro-batches differ in pairs."""
    kept_bytes: Float[np.ndarray, "rows items"]
    """Bytes kept per micro-batch in flight."""
    away_bytes: Float[np.ndarray, "rows items"]
    """The same in host memory."""
    transient_bytes: Float[np.ndarray, "rows items"]
    dense_parameters: Float[np.ndarray, "rows items"]
    expert_parameters: Float[np.ndarray, "rows items"]
    dense_tensors: Float[np.ndarray, "rows items"]
    """Parameter tensors that are trained."""
    expert_tensors: Float[np.ndarray, "rows items"]
    replicated_parameters: Float[np.ndarray, "rows items"]
    """Dense parameters whose gradients are summed over tensor ranks."""
    frozen_dense_bytes: Float[np.ndarray, "rows items"]
    """Bytes of dense weights that are not trained, as they are stored."""
    frozen_expert_bytes: Float[np.ndarray, "rows items"]
    frozen_gathered: Float[np.ndarray, "rows items"]
    """Share of those bytes that ranks gather: FSDP2 casts shards to the format of products before it gathers them, and
    nobody gathers what no sample uses."""
    recompute_flop: Float[np.ndarray, "rows items"]
    """Computed a second time by the device."""
    query_bytes: Float[np.ndarray, "rows items"]
    """Queries of attention whose work grows along the sequence."""
    key_bytes: Float[np.ndarray, "rows items"]
    """Keys and values of as many tokens."""
    core_forward_s: Float[np.ndarray, "rows items"]
    """Forward of attention whose work grows along the sequence."""
    core_backward_s: Float[np.ndarray, "rows items"]
    """Backward of the same attention, with its forward where backward repeats it."""
    core_repeats: Float[np.ndarray, "rows items"]
    """How often it does."""
    dense_state_bytes: Float[np.ndarray, "rows items"]
    """Optimizer states beyond those of as many parameters of the usual kind, as `states.Extras`; so the next twelve."""
    expert_state_bytes: Float[np.ndarray, "rows items"]
    dense_update_s: Float[np.ndarray, "rows items"]
    expert_update_s: Float[np.ndarray, "rows items"]
    dense_weight_bytes: Float[np.ndarray, "rows items"]
    expert_weight_bytes: Float[np.ndarray, "rows items"]
    dense_payload: Float[np.ndarray, "rows items"]
    expert_payload: Float[np.ndarray, "rows items"]
    statistics_s: Float[np.ndarray, "rows items"]
    dense_refresh_s: Float[np.ndarray, "rows items"]
    expert_refresh_s: Float[np.ndarray, "rows items"]
    dense_statistics: Float[np.ndarray, "rows items"]
    expert_statistics: Float[np.ndarray, "rows items"]

    @property
    def compute_s(self) -> Float[np.ndarray, "rows items"]:
        """Products, attention and memory-bound operators, without what is computed twice."""
        other = self.recompute_s + self.tp_s + self.cp_s + self.ep_s + self.host_s + self.offload_s
        return self.forward_s + self.backward_s - other

    @property
    def gathered_bytes(self) -> Float[np.ndarray, "rows items"]:
        """Bytes of frozen weights of an item once they are gathered."""
        return (self.frozen_dense_bytes + self.frozen_expert_bytes) * self.frozen_gathered

    def take(self, index: Int[np.ndarray, "picked"]) -> ItemCosts:
        """The rows of this index."""
        return replace(self, **{f.name: getattr(self, f.name)[index] for f in fields(self)})


_COSTS = tuple(f.name for f in fields(ItemCosts))


def item_costs(
    items: tuple[Item, ...], columns: StrategyColumns, model: ModelSpec, hardware: Hardware, workload: Workload
) -> ItemCosts:
    """Price every item under every strategy.

    Args:
        items: columns of the table.
        columns: strategies, its rows.
        model: the model the items belong to.
        hardware: the device and its links.
        workload: precision, attention kernel, lengths.

    Returns:
        The table.
    """
    parts = dict(zip(_COSTS, np.zeros((len(_COSTS), columns.rows, len(items))), strict=True))
    priced: dict[LayerWork, WorkSeconds] = {}
    groups = Groups(columns, hardware)

    def seconds(work: LayerWork, *, quantised: bool = True) -> WorkSeconds:
        if work not in priced:
            priced[work] = price_work(work, columns, hardware, workload, quantised=quantised, groups=groups)
        return priced[work]

    lora = model.lora
    stored = lora.base if lora is not None else None
    hardware, driver = _driven(hardware, stored)
    rest_bytes = 4.0 if driver.wide_rest else workload.precision.bytes_of("weights")
    unlike = driver.unfused or driver.held_logits > 0
    table = local_units(model.vocab, columns.tp) * model.hidden
    # The head runs backward right behind its forward: there is no time for its logits to be away.
    at_once = replace(columns, offload_activations=np.zeros(columns.rows))
    if has_extras(model, workload) or columns.compression is not None:
        _add_extras(parts, items, columns, model, hardware, workload)
    # Source: FSDPParam.all_gather_inputs of torch/distributed/fsdp/_fully_shard/_fsdp_param.py (2.13, 2026).
    parts["frozen_gathered"][:] = MADE_AGAIN_BYTES / STORED_BYTES["fp32"] if stored == "fp32" else 1.0
    for number, item in enumerate(items):
        own = {name: part[:, number] for name, part in parts.items()}
        if item.part in ("tie", "copy"):
            sign = 1.0 if item.part == "copy" else -1.0
            if model.tuning is not None and model.tuning.freezes("embedding"):
                own["frozen_dense_bytes"][:] = sign * table * rest_bytes
            else:
                own["dense_parameters"][:], own["dense_tensors"][:] = sign * table, sign
            continue
        works = works_of(item, model, workload, driver)
        for work, quantised, recompute in works:
            kept = work
            if unlike:
                from meshwright.ops.unfused import unfused_work  # frameworks with fused kernels need none of it

                kept = unfused_work(work, held_logits=driver.held_logits, layers=driver.unfused)
            # The loss makes its gradients before any layer runs backward.
            logits = [one for one in work.kept if one.name == "logits"] if driver.loss_copies else []
            copies = driver.loss_copies + driver.split_loss_copies * (columns.tp > 1)
            brief = tensor_bytes(logits, work, columns, workload.precision) * copies
            _add_item(
                own,
                kept,
                seconds(work, quantised=quantised),
                recompute,
                columns if quantised or item.part == "embedding" else at_once,
                hardware,
                workload,
                brief=brief * workload.training,
            )
        if item.part == "embedding" and model.idle_parameters:
            used = np.array(own["frozen_dense_bytes"])
            own["frozen_dense_bytes"] += model.idle_parameters * rest_bytes
            own["frozen_gathered"] *= used / own["frozen_dense_bytes"]
        if item.part == "mtp":
            # Its loss uses the head's projection, which the stage already holds.
            head = seconds(edge_work(model, "head", workload.loss_tiles), quantised=False)
            for name in ("dense_parameters", "dense_tensors", "frozen_dense_bytes"):
                own[name] -= getattr(head, name)
    return ItemCosts(**parts)


def _driven(hardware: Hardware, stored: str | None) -> tuple[Hardware, Software]:
    """The device, and the software that computes logits, beside frozen weights that are stored so."""
    driver = hardware.software
    # Tables, head and norms are in fp32 beside a base of bitsandbytes, and where all weights were loaded so.
    cast = driver.wide_rest and stored in BITSANDBYTES
    if driver.wide_rest != (cast or stored == "fp32"):
        driver = replace(driver, wide_rest=cast or stored == "fp32")
        hardware = replace(hardware, software=driver)
    # A head in fp32 makes its logits so; one that is only kept so is read in the format of products.
    return hardware, replace(driver, held_logits=1.0) if cast else driver


def _add_extras(
    parts: dict[str, Float[np.ndarray, "rows items"]],
    items: tuple[Item, ...],
    columns: StrategyColumns,
    model: ModelSpec,
    hardware: Hardware,
    workload: Workload,
) -> None:
    """States and weights that do not follow from the number of parameters."""
    found: dict[tuple[LayerWork, bool, bool], Extras] = {}

    def of(work: LayerWork, *, edge: bool, quantised: bool) -> Extras:
        key = (work, edge, quantised)
        if key not in found:
            found[key] = extras(work, columns, hardware, workload, edge=edge, quantised=quantised)
        return found[key]

    def table_of(part: Literal["embedding", "head"]) -> Extras:
        """Extras of the table alone: where it is shared the head keeps its norm."""
        work = edge_work(model, part)
        ops = tuple(op for op in work.ops if isinstance(op, Linear) or (isinstance(op, Vector) and op.table))
        return of(replace(work, ops=ops), edge=True, quantised=False)

    for number, item in enumerate(items):
        if item.part == "copy":
            sums = [table_of("embedding")]
        elif item.part == "tie":
            sums = [minus(Extras.nothing(columns.rows), table_of("head"))]
        else:
            # A prediction module shares the head's projection.
            works = works_of(item, model, workload)[: 2 if item.part == "mtp" else None]
            edge = item.part in ("embedding", "head")
            sums = [of(work, edge=edge, quantised=quantised) for work, quantised, _ in works]
        for one in sums:
            for field in fields(Extras):
                parts[field.name][:, number] += getattr(one, field.name)


def _add_item(
    own: dict[str, Float[np.ndarray, "rows"]],
    work: LayerWork,
    seconds: WorkSeconds,
    recompute: Recompute,
    columns: StrategyColumns,
    hardware: Hardware,
    workload: Workload,
    *,
    brief: Float[np.ndarray, "rows"],
) -> None:
    training = workload.training and work.reached
    pieces = workload.mlp_tiles
    if pieces > 1:
        recompute = with_tiles(recompute)
    repeated = repeated_modules(seconds, recompute, tiled=pieces > 1) if training else []
    backward = seconds.backward if training else ModuleSeconds.nothing(columns.rows)
    comm = {name: getattr(seconds.forward, name) + getattr(backward, name) for name in ("tp_s", "cp_s", "ep_s")}
    forward_s = seconds.forward.compute_s + seconds.forward.tp_s + seconds.forward.cp_s + seconds.forward.ep_s
    backward_s = backward.compute_s + backward.tp_s + backward.cp_s + backward.ep_s
    exchanged_s = backward.ep_s
    recompute_s, recompute_flop = np.zeros(columns.rows), np.zeros(columns.rows)
    operators = backward.operators * hardware.software.backward_issue
    again = 1.0 if columns.stashed is None else np.where(columns.stashed, 0.0, 1.0)
    for module in repeated:
        recompute_s = recompute_s + module.compute_s
        recompute_flop = recompute_flop + module.flop
        backward_s = backward_s + module.compute_s + module.tp_s + module.cp_s + module.ep_s * again
        exchanged_s = exchanged_s + module.ep_s * again
        operators = operators + module.operators
        for name in comm:
            comm[name] = comm[name] + getattr(module, name) * (again if name == "ep_s" else 1.0)

    host_forward_s = np.maximum(seconds.forward.operators * hardware.operator_s - forward_s, 0.0)
    host_backward_s = np.maximum(operators * hardware.operator_s - backward_s, 0.0)
    forward_s, backward_s = forward_s + host_forward_s, backward_s + host_backward_s

    kept = kept_bytes(work, columns, workload.precision, recompute) * training
    if columns.stashed is not None and repeated:
        kept = kept + seconds.stashed_bytes
    weight_bytes = (seconds.dense_parameters + seconds.expert_parameters) * workload.precision.bytes_of("weights")
    weight_bytes = weight_bytes + seconds.frozen_dense_bytes + seconds.frozen_expert_bytes
    # Weights come once for each pass; activations leave in one and return in the other.
    fetched, away = weight_bytes * columns.offload_weights, kept * columns.offload_activations
    copies_s = (fetched + away) / hardware.host_bytes_per_s
    if columns.weights_on_disk is not None:
        copies_s = np.maximum(copies_s, fetched * columns.weights_on_disk / hardware.disk_rates[0])
    offload_forward_s = np.maximum(copies_s - forward_s, 0.0)
    offload_backward_s = np.maximum(copies_s - backward_s, 0.0) * training

    transient = np.maximum(seconds.transient_bytes, brief) + hardware.efficiency.workspace_bytes
    if training and recompute.kind in ("full", "grouped"):
        live = recompute.group if recompute.kind == "grouped" else 1
        transient = transient + live * kept_bytes(work, columns, workload.precision, TILED if pieces > 1 else NONE)
    if training and HALF_PRODUCTS in recompute.modules:
        transient = transient + made_again_bytes(work, columns, workload.precision)
    if pieces > 1 and training:
        whole, rest = (kept_bytes(work, columns, workload.precision, mode) for mode in (NONE, TILED))
        transient = transient + (whole - rest) / pieces
    # Two layers' worth of copies are on the device while one computes.
    transient = transient + 2 * (away + fetched)

    core = seconds.core
    again_core = sum(module is seconds.by_module.get(core.module) or module is seconds.forward for module in repeated)
    ahead = np.zeros(columns.rows) if columns.prioritised is None else columns.prioritised
    added = {
        "meeting_s": exchanged_s * (1.0 - ahead),
        "ahead_s": exchanged_s * ahead,
        "forward_s": forward_s + offload_forward_s,
        "backward_s": backward_s + offload_backward_s,
        "weight_gradient_s": seconds.weight_gradient_s,
        "recompute_s": recompute_s,
        **comm,
        "host_s": host_forward_s + host_backward_s,
        "offload_s": offload_forward_s + offload_backward_s,
        "hidden_s": seconds.hidden_s * (0.5 if not training else 1.0),
        "lockstep_forward_s": seconds.lockstep_s[0],
        "lockstep_backward_s": seconds.lockstep_s[1] * training,
        "uneven_s": seconds.uneven_s[0] + seconds.uneven_s[1] * training,
        "kept_bytes": kept - away,
        "away_bytes": away,
        "dense_parameters": seconds.dense_parameters,
        "expert_parameters": seconds.expert_parameters,
        "frozen_dense_bytes": seconds.frozen_dense_bytes,
        "frozen_expert_bytes": seconds.frozen_expert_bytes,
        "dense_tensors": seconds.dense_tensors,
        "expert_tensors": seconds.expert_tensors,
        "replicated_parameters": seconds.replicated_parameters,
        "recompute_flop": recompute_flop,
        "query_bytes": core.query_bytes,
        "key_bytes": core.key_bytes,
        "core_forward_s": core.forward_s,
        "core_backward_s": (core.backward_s + again_core * core.forward_s) * training,
        "core_repeats": float(again_core),
    }
    for name, value in added.items():
        part = own[name]
        part += value
    np.maximum(own["transient_bytes"], transient, out=own["transient_bytes"])
