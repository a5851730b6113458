"""Streams beside the text: each is priced with tokens of its own, and pipelines keep towers whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.errors import InputError
from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.layers.item_costs import ItemCosts, item_costs
from meshwright.estimate.layers.items import Item, items_of
from meshwright.estimate.layout import ModelLayout, expand
from meshwright.estimate.needed_flop import model_flop_per_token, step_flop
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate
from meshwright.estimate.rows import strategy_columns
from meshwright.estimate.rules.legality import row_problems
from meshwright.estimate.sequences import WHOLE, pairs_of_row
from meshwright.fields.job import JobFields
from meshwright.formats.huggingface import read_config
from meshwright.library.clusters import resolve_gpus
from meshwright.ops.layers import work_of
from meshwright.planning.question.samples import with_samples
from meshwright.search.search import search
from meshwright.search.space import Space
from meshwright.specs.model import LayerRun, LayerSpec, ModelSpec
from meshwright.specs.operators import CoreAttention, Linear, StreamTokens
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow
from meshwright.specs.row_text import parse_row
from meshwright.specs.strategy import Recompute
from meshwright.specs.workload import Workload
from tests.formats.huggingface.test_encoders import PUBLISHED as ENCODERS
from tests.formats.huggingface.towers import LLAVA, MLLAMA, QWEN25_VL

CLUSTER = resolve_gpus("8xH100")
JOB = Workload(seq_len=4096, global_batch=64)
QWEN = read_config(QWEN25_VL, "qwen")
T5 = read_config(ENCODERS["t5-base"][0], "t5")
WHISPER = read_config(ENCODERS["whisper-large-v3"][0], "whisper")


def _sampled(model: ModelSpec, seq_len: int = 4096, **said: object) -> ModelSpec:
    return with_samples(model, JobFields(**said), seq_len)[0]


def _row(text: str) -> PlanRow:
    return parse_row(text, devices=8, global_batch=64, schedules=("1f1b", "interleaved"))


def _costs(items: tuple[Item, ...], model: ModelSpec, workload: Workload, row: str, mbs: float = 1) -> ItemCosts:
    columns = strategy_columns([_row(row).strategy()], float(mbs), workload)
    return item_costs(items, columns, model, hardware_of(CLUSTER.groups[0], workload), workload)


def _alone(layer: LayerSpec, hidden: int) -> ModelSpec:
    """The layer as a model of its own, on text."""
    plain = replace(layer, stream="")
    return ModelSpec(
        name="alone",
        family="toy",
        hidden=hidden,
        vocab=32,
        max_seq_len=8192,
        runs=(LayerRun(layers=(plain,), repeats=1),),
        tied_embeddings=False,
    )


@pytest.mark.parametrize("row", ["dp8", "tp2.dp4", "tp2.nosp.dp4"])
def test_a_tower_layer_costs_what_it_costs_on_as_many_tokens_of_text(row: str) -> None:
    model = _sampled(read_config(LLAVA, "llava"), images=3)
    layer = next(model.layers())
    own = _alone(layer, 1024)
    inside = _costs((Item("layer", layer),), model, JOB, row)
    outside = _costs((Item("layer", own.last_layer()),), own, replace(JOB, seq_len=577), row, mbs=3)
    for name in ("forward_s", "backward_s", "kept_bytes", "dense_parameters", "tp_s"):
        assert getattr(inside, name) == pytest.approx(getattr(outside, name)), name


def test_context_ranks_share_out_whole_images() -> None:
    model = _sampled(read_config(LLAVA, "llava"), images=4)
    item = (Item("layer", next(model.layers())),)
    whole, shared = (_costs(item, model, JOB, row) for row in ("dp8", "cp2.dp4"))
    assert shared.kept_bytes == pytest.approx(whole.kept_bytes / 2)
    assert not shared.cp_s.any(), "images do not see each other"
    more = _costs(item, model, JOB, "cp8.dp1")
    assert more.kept_bytes == pytest.approx(whole.kept_bytes / 4), "a rank holds one image at least"


def test_keys_of_cross_attention_are_those_of_the_encoder() -> None:
    layer = WHISPER.last_layer()
    work = work_of(WHISPER, layer, "flash")
    keys = next(op for op in work.ops if isinstance(op, Linear) and op.name == "keys and values")
    core = [op for op in work.ops if isinstance(op, CoreAttention)]
    assert keys.tokens is not None
    assert keys.tokens.count == 1500
    assert [op.keys.count if op.keys else None for op in core] == [None, 1500]
    few, many = (_costs((Item("layer", layer),), WHISPER, replace(JOB, seq_len=seq), "dp8", mbs=8) for seq in (64, 448))
    assert few.forward_s > many.forward_s / 4, "keys and values are made however few tokens ask for them"


def test_flop_of_a_vision_transformer_are_those_published() -> None:
    """61.6 multiply-adds per image of ViT-L/16 at 224 pixels, in billions (torchvision's table of models)."""
    model = read_config(ENCODERS["vit-l-16"][0], "vit")
    flop = model_flop_per_token(model, 1, training=False)
    assert flop == pytest.approx(2 * 61.55e9, rel=0.01)


def test_flop_grow_with_the_images_of_a_sample() -> None:
    none, one, two = (
        model_flop_per_token(_sampled(QWEN, images=count, **_size_of(count)), 4096, training=True)
        for count in (0, 1, 2)
    )
    assert none < one < two
    assert two - one == pytest.approx(one - none, rel=0.35), "the second image adds what the first does"


def _size_of(count: int) -> dict[str, str]:
    return {"image_size": "448x448"} if count else {}


def test_towers_stand_whole_on_the_first_stage() -> None:
    model = _sampled(QWEN, images=4, image_size="896x896")
    counts = ModelLayout.of(model, 4096).split(4)
    assert counts[0] > 32, "the tower and a layer of the text"
    assert sum(counts) == 60
    assert counts[0] - 32 < counts[1], "its stage takes fewer layers of the text"
    estimate = estimate_plan(expand(_row("pp4.dp2"), model, 4096), model, CLUSTER, JOB)
    assert len(estimate.stages) == 4
    assert [problem.field for problem in row_problems(_row("pp32.dp1"), model, 4096, 32)] == ["pp"]


def test_a_plan_that_cuts_a_tower_is_refused() -> None:
    model = _sampled(QWEN, images=1, image_size="448")
    plan = expand(_row("pp2.dp4"), _sampled(QWEN, images=0), 4096)
    wide = expand(_row("pp2.dp4"), model, 4096)
    cut = _moved(wide, 20)
    assert plan.num_layers == 28
    with pytest.raises(InputError, match="a stage ends after layer 19"):
        estimate_plan(cut, model, CLUSTER, JOB)


def _moved(plan: ExecutionPlan, first: int) -> ExecutionPlan:
    """The plan of two stages with so many layers on the first."""
    pipeline = plan.pipelines[0]
    total = plan.num_layers
    workers = []
    for worker, (low, last) in zip(pipeline.workers, ((0, first - 1), (first, total - 1)), strict=True):
        chunk = worker.chunks[0]
        runs = (replace(chunk.runs[0], layers=last - low + 1),)
        workers.append(replace(worker, chunks=(replace(chunk, layers=((low, last),), runs=runs),)))
    return replace(plan, pipelines=(replace(pipeline, workers=tuple(workers)),))


def test_an_encoders_output_is_passed_to_every_stage_of_the_decoder() -> None:
    assert WHISPER.boundary_width(448) == pytest.approx(1280 * (1 + 1500 / 448))
    assert QWEN.streams
    text = _sampled(QWEN, images=2, image_size="448")
    assert text.boundary_width(4096) == text.hidden, "images are part of the text behind their tower"
    crossed = _sampled(read_config(MLLAMA, "mllama"), images=1)
    assert crossed.boundary_width(4096) > crossed.hidden, "cross attention reads them on later stages"


def test_recompute_spares_the_activations_of_a_tower() -> None:
    model = _sampled(QWEN, images=8, image_size="448")
    kept, again = (
        dict(estimate_plan(expand(_row(row), model, 4096), model, CLUSTER, JOB).stages[0].memory_bytes)["activations"]
        for row in ("dp8.z3", "dp8.z3.rc-full")
    )
    assert again < kept / 4


def test_the_search_finds_the_quickest_of_all_plans_of_an_encoder_decoder() -> None:
    model = replace(WHISPER, name="whisper")
    workload = Workload(seq_len=448, global_batch=64)
    space = Space(pins=(("mbs", (2, 4)), ("tp", (1, 2)), ("schedule", ("1f1b",)), ("sharding", ("z1",))))
    found = search(model, CLUSTER, workload, space, top=1)
    best = found.plans[0]
    assert best.row is not None
    rows = [f"tp{tp}.pp{pp}.dp{8 // tp // pp}.z1.mbs{mbs}" for tp in (1, 2) for pp in (1, 2, 4) for mbs in (2, 4)]
    for text in rows:
        row = _row(text)
        if not row_problems(row, model, 448, 8):
            plan = expand(row, model, 448)
            assert estimate_plan(plan, model, CLUSTER, workload).step_time_s >= best.estimate.step_time_s * 0.9999
    again = estimate_plan(expand(best.row, model, 448), model, CLUSTER, workload)
    assert again.step_time_s == pytest.approx(best.estimate.step_time_s)


def test_items_of_a_model_hold_a_column_for_each_kind_of_layer_of_every_stream() -> None:
    model = _sampled(QWEN, images=1, image_size="448")
    kinds = [item.layer.stream for item in items_of(model, (Recompute(),)) if item.layer]
    assert sorted(kinds) == ["", "vision", "vision windows"]


def of_t5(lengths: tuple[tuple[int, float], ...] = (), packing: str = "pack", encoder: int = 2048) -> StepEstimate:
    """A step of T5 on rows of 1,024 tokens in the decoder."""
    model = with_samples(T5, JobFields(encoder_seq_len=encoder), 1024)[0]
    work = Workload(seq_len=1024, global_batch=16, sequence_lengths=lengths, packing=packing)
    return estimate_plan(expand(PlanRow(tp=2, dp=4, gbs=16), model, 1024), model, resolve_gpus("8xH100"), work)


def compute_s(step: StepEstimate) -> float:
    return dict(step.breakdown_s)["compute"]


@pytest.mark.parametrize("packing", ["pack", "pad", "concat", "bins"])
def test_sequences_that_fill_both_rows_change_nothing(packing: str) -> None:
    alike, stated = of_t5(), of_t5(((1024, 1.0),), packing)
    assert replace(stated, filling=None) == alike


def test_encoder_and_cross_attention_see_their_own_sequence_alone() -> None:
    """Four sequences in a row: a quarter of the pairs of the encoder, of the decoder and between them."""
    work = Workload(seq_len=1024, global_batch=1, sequence_lengths=((256, 1.0),))
    both, own = replace(WHOLE, causal=False), StreamTokens(sequences=1, length=2048, whole=False)
    assert pairs_of_row(both, work, 2048.0) == 4 * 512 * 512
    assert pairs_of_row(both, work, 1024.0) == 4 * 256 * 256
    assert pairs_of_row(replace(both, keys=own), work, 1024.0) == 4 * 256 * 512
    whole, quarters = of_t5(), of_t5(((256, 1.0),))
    assert compute_s(quarters) < compute_s(whole)
    assert quarters.peak_memory_bytes == whole.peak_memory_bytes
    saved = compute_s(of_t5(encoder=4096)) - compute_s(of_t5(((256, 1.0),), encoder=4096))
    assert saved > 2 * (compute_s(whole) - compute_s(quarters))


def test_work_that_sequences_of_an_encoder_need_is_of_both_lengths() -> None:
    model = with_samples(T5, JobFields(encoder_seq_len=2048), 1024)[0]
    short = with_samples(T5, JobFields(encoder_seq_len=512), 256)[0]
    work = Workload(seq_len=1024, global_batch=16, sequence_lengths=((256, 1.0),))
    needed = model_flop_per_token(short, 256, training=True) * 16 * 1024
    assert step_flop(model, work) == pytest.approx(needed, rel=1e-9)
