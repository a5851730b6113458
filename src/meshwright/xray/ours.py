"""What our own operator list says one rank does: products and collectives, in the words of `traced`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from meshwright.estimate.rows import strategy_columns
from meshwright.kernels.exchange import Routing
from meshwright.library.software import software
from meshwright.ops.edges import edge_works
from meshwright.ops.half_products import half_products_work
from meshwright.ops.last_product import without_last_product
from meshwright.ops.layers import work_of
from meshwright.specs.job import Job
from meshwright.specs.operators import CoreAttention, Exchange, LayerWork, Linear, Scan, Vector
from meshwright.specs.plan import Worker
from meshwright.specs.strategy import HALF_PRODUCTS, LAST_PRODUCT, LayerStrategy, Recompute
from meshwright.strategies import TENSORS, context, expert
from meshwright.strategies.base import Call, LocalGemm
from meshwright.strategies.columns import Column, StrategyColumns
from meshwright.strategies.data import whole_between

_SUMS, _BYTES_OF_A_SUM = 3, 4
"""All-reduces of a cross-entropy for each token: the largest logit, the one of the label, the sum of exponentials."""
Gemm = tuple[str, int, int, int, int]
"""Phase, groups, and the sizes of a product: the two of its result, smaller first, and the one summed over."""
Exchanged = tuple[str, str, int, str, int]
"""Kind, group, ranks, phase, bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorForm:
    """How a framework runs operators of our list."""

    gated_apart: bool = False
    """The two matrices of a gated function are two products."""
    in_pieces: bool = False
    """Products of one input are cut and joined as each class likes: widths are compared in sum, gradients by work."""
    loss_pieces: int = 1
    """Pieces in which logits are made, one after the other."""
    regathers: bool = True
    """What a column-split product gathered is gathered again in the backward pass, else kept whole."""
    vocab_multiple: int = 1
    """A rank's part of the vocabulary is padded to a multiple of so many entries."""
    small_sums: bool = False
    """Sums over a vocabulary that tensor ranks share, and gradients of what each of them holds whole, are reduced over
    tensor ranks by calls of their own, which are not priced."""
    fused_loss: bool = False
    """Two of the sums over a shared vocabulary are one call."""
    sends_parts: bool = True
    """Whether a tensor rank without sequence parallelism, too, sends its part of the tokens to the next stage; else
    all."""


FORMS = {
    "megatron": OperatorForm(vocab_multiple=128, sends_parts=False, small_sums=True),
    "torchtitan": OperatorForm(gated_apart=True, loss_pieces=8, regathers=False),
    "module": OperatorForm(in_pieces=True),
}
"""Forms by framework. Source: Megatron-Core 0.16.1: `get_tensor_shapes` of its schedules,
`--make-vocab-size-divisible-by`, VocabParallelCrossEntropy, `_allreduce_non_tensor_model_parallel_grads`; torchtitan
0.3.0 (2026-11): FeedForward, ChunkedLossWrapper, tensor parallelism by DTensor."""
_LOSS, _GRADIENTS = "sums inside the cross-entropy", "gradients of norms and of other small weights"


@dataclass(slots=True)
class RankWork:
    """Products and collectives of one rank, as often as a step of so many micro-batches has them."""

    gemms: Counter[Gemm] = field(default_factory=Counter)
    rows: set[tuple[int, int]] = field(default_factory=set)
    """Groups of products and the tokens of each."""
    collectives: Counter[Exchanged] = field(default_factory=Counter)
    dense: float = 0.0
    """Parameters of the rank that its data ranks share gradients of."""
    experts: float = 0.0
    """Parameters of routed experts that its data ranks share."""
    whole: float = 0.0
    """Parameters that every tensor rank holds and has gradients of from its own tokens alone."""
    unpriced: dict[Exchanged, str] = field(default_factory=dict)
    """Collectives that no price has, and what each is."""


def gemm_of(phase: str, groups: float, m: float, n: float, k: float) -> Gemm:
    """A product under a name that does not say which side was transposed."""
    low, high = sorted((round(m), round(n)))
    return phase, round(groups), low, high, round(k)


def rank_work(job: Job, stage: int, micro_batches: int, form: OperatorForm = OperatorForm()) -> RankWork:
    """The work of a rank of one stage.

    Args:
        job: the plan, of one pipeline.
        stage: the stage of the pipeline.
        micro_batches: the number of micro-batches that pass it.
        form: how the framework runs operators.
    """
    pipeline = job.plan.pipelines[0]
    worker = pipeline.workers[stage]
    found = RankWork()
    tp = job.plan.strategies[job.plan.strategy_index(pipeline, worker)].tp
    multiple = form.vocab_multiple * tp
    job = replace(job, model=replace(job.model, vocab=math.ceil(job.model.vocab / multiple) * multiple))
    for strategy, work, recompute in _works(job, worker):
        columns = strategy_columns([strategy], pipeline.micro_batch, job.workload)
        _add(found, work, columns, recompute, job, micro_batches, form)
    _add_transfers(found, job, stage, micro_batches, form)
    if form.small_sums and found.whole:
        _add_unpriced(found, tp, found.whole * job.workload.precision.bytes_of("gradients"), 1, _GRADIENTS)
    _add_gradients(found, job, stage, micro_batches)
    return found


def _add_gradients(found: RankWork, job: Job, stage: int, micro_batches: int) -> None:
    """Bytes of a step that data ranks sum and gather; in how many pieces is the framework's choice."""
    pipeline = job.plan.pipelines[0]
    worker = pipeline.workers[stage]
    strategy = job.plan.strategies[job.plan.strategy_index(pipeline, worker)]
    precision, zero = job.workload.precision, strategy.data.zero
    replicas = strategy.devices // (strategy.expert.ep * strategy.expert.etp)
    keeps = software(job.workload.software).whole_gradients
    whole = whole_between(keeps, np.array(micro_batches), np.array(len(pipeline.workers)))
    deferred = strategy.data.family == "fsdp" and whole is not None and bool(whole)
    for parameters, group, ranks in (
        (found.dense, "dp", strategy.dp * strategy.cp),
        (found.experts, "edp", replicas),
    ):
        if ranks == 1 or not parameters:
            continue
        reduced, gathered = parameters * precision.bytes_of("reduce"), parameters * precision.bytes_of("weights")
        if zero == 0:
            found.collectives[("all_reduce", group, ranks, "step", round(reduced))] += 1
            continue
        times = micro_batches if zero == 3 else 1
        found.collectives[("reduce_scatter", group, ranks, "step", round(reduced * (1 if deferred else times)))] += 1
        gathers = times * (2 if zero == 3 and strategy.data.reshard else 1)
        found.collectives[("all_gather", group, ranks, "step", round(gathered * gathers))] += 1


def _works(job: Job, worker: Worker) -> Iterator[tuple[LayerStrategy, LayerWork, Recompute]]:
    """What stands on a worker, layer by layer and with its ends."""
    layers, kernel = list(job.model.layers()), job.workload.attention_kernel
    pipeline = job.plan.pipelines[0]
    stops = software(job.workload.software).stops_recompute
    for chunk in worker.chunks:
        edge = job.plan.strategies[job.plan.strategy_index(pipeline, worker, chunk)]
        if chunk.embedding:
            for work in edge_works(job.model, "embedding"):
                yield edge, work, Recompute()
        places = [place for first, last in chunk.layers for place in range(first, last + 1)]
        runs = [job.plan.strategies[run.strategy] for run in chunk.runs for _ in range(run.layers)]
        for place, strategy in zip(places, runs, strict=True):
            work = work_of(job.model, layers[place], kernel)
            if HALF_PRODUCTS in strategy.recompute.modules:
                work = half_products_work(work, compiled=True)
            if stops and (strategy.recompute.kind == "full" or "mlp" in strategy.recompute.modules):
                work = without_last_product(work, layers[place])
            yield strategy, work, strategy.recompute
        if chunk.head:
            for work in edge_works(job.model, "head"):
                yield edge, work, Recompute()


def _add(
    found: RankWork,
    work: LayerWork,
    columns: StrategyColumns,
    recompute: Recompute,
    job: Job,
    micro_batches: int,
    form: OperatorForm,
) -> None:
    activation_bytes = job.workload.precision.bytes_of("activations")
    tensor = TENSORS[columns.tensor]
    groups = {
        **tensor.groups(columns),
        **context.context_groups(columns),
        "etp": (np.ones(1, dtype=np.int64), columns.etp),
        "ep": (columns.etp, columns.ep),
    }
    for op in work.ops:
        again = (recompute.kind in ("full", "grouped") and op.module != LAST_PRODUCT) or (
            recompute.kind == "selective" and op.module in recompute.modules
        )
        calls: tuple[Call, ...] = ()
        if isinstance(op, Linear):
            local = (
                expert.shard_experts(op, columns, work.top_k)
                if op.experts
                else tensor.linear(op, columns.at(op.tokens or work.tokens), activation_bytes)
            )
            _add_products(found, op, local, form, micro_batches, again=again, reached=work.reached)
            calls = local.calls if form.regathers else tuple(_once(local.calls))
            if local.expert:
                found.experts += _number(local.parameters)
            else:
                found.dense += _number(local.parameters)
            found.whole += _whole(op) if columns.sp[0] else 0
        elif isinstance(op, Vector):
            rows, width = op.table or (0, 0)
            found.dense += op.parameters + op.cut_parameters / columns.tp[0] + rows / columns.tp[0] * width
            calls = tensor.vector_calls(op, columns, activation_bytes)
            found.whole += op.parameters if columns.sp[0] and op.table is None else 0
            if form.small_sums and op.module == "loss" and columns.tp[0] > 1:
                sums = _number(columns.tokens) * _BYTES_OF_A_SUM
                for size, count in ((sums, 1), (2 * sums, 1)) if form.fused_loss else ((sums, _SUMS),):
                    _add_unpriced(found, int(columns.tp[0]), size, count * micro_batches, _LOSS)
        elif isinstance(op, Exchange):
            routing = Routing(copies=work.top_k)
            calls = expert.exchange_calls(op, columns, routing, activation_bytes)
        elif isinstance(op, CoreAttention):
            local_ = context.shard_attention(op, columns, 1.0, activation_bytes, materialised=False)
            calls = local_.calls
        elif isinstance(op, Scan):
            calls = context.shard_scan(op, columns, activation_bytes).calls
        for call in calls:
            _add_call(found, call, int(groups[call.group][1][0]), micro_batches, again=again)


def _add_products(
    found: RankWork, op: Linear, local: LocalGemm, form: OperatorForm, micro_batches: int, *, again: bool, reached: bool
) -> None:
    """A product forward, again where it is made again, and its two gradients."""
    groups, m, n, k = (_number(one) for one in (local.groups, local.m, local.n, local.k))
    for width, count in _pieces(op, n, form):
        rows, times = (m / form.loss_pieces, count * form.loss_pieces) if op.module == "loss" else (m, count)
        found.rows.add((round(groups), round(rows)))
        times *= micro_batches
        found.gemms[gemm_of("forward", groups, rows, width, k)] += times
        if again:
            found.gemms[gemm_of("recompute", groups, rows, width, k)] += times
        if reached:
            found.gemms[gemm_of("backward", groups, rows, k, width)] += times
            found.gemms[gemm_of("backward", groups, width, k, rows)] += times * op.trained


def _pieces(op: Linear, n: float, form: OperatorForm) -> list[tuple[float, int]]:
    """Widths of the products that a product of our list is run as, and how often."""
    gated = len(op.outputs) == 1 and op.outputs[0][1] == 2
    if form.gated_apart and gated:
        return [(n / 2, 2)]
    return [(n, 1)]


def _once(calls: tuple[Call, ...]) -> Iterator[Call]:
    """Calls of a product without the gather that makes its input again for the gradient of the weights."""
    gathered = any(call.kind == "all_gather" and call.phase == "forward" for call in calls)
    for call in calls:
        if not (gathered and call.kind == "all_gather" and call.phase == "backward"):
            yield call


def _whole(op: Linear) -> int:
    """Parameters of a product that tensor ranks hold whole: those of a router, the bias behind a sum."""
    return op.parameters if op.split == "replicated" else op.bias if op.split == "row" and not op.experts else 0


def _add_unpriced(found: RankWork, ranks: int, size: float, count: int, what: str) -> None:
    key = ("all_reduce", "tp", ranks, "forward", round(size))
    found.collectives[key] += count
    found.unpriced[key] = what


def _number(column: Column) -> float:
    """The only row of a column."""
    return float(np.asarray(column).reshape(-1)[0])


def _add_call(found: RankWork, call: Call, ranks: int, micro_batches: int, *, again: bool) -> None:
    payload = _number(call.payload_bytes)
    if not payload or ranks == 1:
        return
    count = round(_number(call.repeats) * micro_batches)
    group = "cp" if call.group.startswith("cp_") else call.group
    found.collectives[(call.kind, group, ranks, call.phase, round(payload))] += count
    if again and call.phase == "forward":
        found.collectives[(call.kind, group, ranks, "recompute", round(payload))] += count


def _add_transfers(found: RankWork, job: Job, stage: int, micro_batches: int, form: OperatorForm) -> None:
    """Activations to the next chunk and gradients to the one before."""
    pipeline = job.plan.pipelines[0]
    stages = len(pipeline.workers)
    if stages == 1:
        return
    worker = pipeline.workers[stage]
    strategy = job.plan.strategies[job.plan.strategy_index(pipeline, worker)]
    columns = strategy_columns([strategy], pipeline.micro_batch, job.workload)
    width = job.model.boundary_width(job.workload.seq_len) * job.workload.precision.bytes_of("activations")
    tokens = columns.boundary_tokens if form.sends_parts else columns.sequence_tokens
    sent = round(float(tokens[0]) * width)
    chunks = [chunk.virtual_stage for one in pipeline.workers for chunk in one.chunks]
    for chunk in worker.chunks:
        ends = (chunk.virtual_stage == min(chunks)) + (chunk.virtual_stage == max(chunks))
        for kind in ("send", "recv"):
            found.collectives[(kind, "pp", stages, "forward", sent)] += micro_batches * (2 - ends)
