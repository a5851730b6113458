"""What holds for every kind of layer part: parameters, shares of ranks, recompute, states, reading, planning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

import pytest
from pydantic import ValidationError

import meshwright as mw
from meshwright.errors import InputError
from meshwright.estimate.hardware import Hardware, hardware_of
from meshwright.estimate.layers.items import FULL, NONE, SELECTIVE
from meshwright.estimate.layers.work import price_work
from meshwright.formats.problems import json_reader, problems_of
from meshwright.library.clusters import resolve_gpus
from meshwright.ops.layers import layer_work
from meshwright.specs.layers import FEED_FORWARDS, MIXERS
from meshwright.specs.layers.absent import NoMixer, NoMlp
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.base import LayerContext, LayerPart, Mixer
from meshwright.specs.layers.cross_attention import CrossAttention
from meshwright.specs.layers.laurel import Laurel
from meshwright.specs.layers.moe import MoeMlp
from meshwright.specs.layers.recurrent import RecurrentMixer
from meshwright.specs.layers.rwkv import RwkvTimeMix
from meshwright.specs.model import ModelSpec
from meshwright.specs.operators import Linear, Vector
from meshwright.specs.workload import Workload
from meshwright.strategies.memory import kept_bytes
from tests.specs.layers.kinds import HIDDEN, KINDS, layer_of, model_of
from tests.strategies.columns import columns

WORKLOAD = Workload(seq_len=4096, global_batch=8)
EVERY = pytest.mark.parametrize("part", KINDS, ids=lambda part: part.kind)


@pytest.fixture(scope="module")
def hardware() -> Hardware:
    return hardware_of(resolve_gpus("8xH100").groups[0], WORKLOAD)


@EVERY
def test_operators_hold_the_parameters_that_a_kind_declares(part: LayerPart) -> None:
    context = LayerContext(hidden=HIDDEN, kernel="flash", dropout=False)
    ops = [op for op in part.work(context).ops if isinstance(op, (Linear, Vector))]
    cut = sum(op.cut_parameters for op in ops if isinstance(op, Vector))
    tables = sum(op.table[0] * op.table[1] for op in ops if isinstance(op, Vector) and op.table)
    assert sum(op.parameters for op in ops) + cut + tables == part.parameters(HIDDEN)
    assert part.active_parameters(HIDDEN) <= part.parameters(HIDDEN)
    assert all(kept.elements > 0 for kept in part.work(context).kept)


def flop(part: LayerPart, hardware: Hardware, **how: int) -> float:
    work = layer_work(layer_of(part), HIDDEN, "flash")
    priced = price_work(work, columns(sp=True, **how), hardware, WORKLOAD)
    assert float(priced.forward.compute_s[0]) > 0
    assert float(priced.backward.compute_s[0]) > 0
    return float(priced.forward.flop[0])


@EVERY
def test_ranks_together_do_the_work_of_one(part: LayerPart, hardware: Hardware) -> None:
    """Tensor ranks may repeat what they cannot share: the one group of B and C of a Mamba-2 layer."""
    one = flop(part, hardware)
    assert one <= 2 * flop(part, hardware, tp=2) * (1 + 1e-9)
    assert 2 * flop(part, hardware, tp=2) < 1.2 * one
    for kind in ("p2p", "a2a", "ag"):
        assert 2 * flop(part, hardware, **{kind: 2}) == pytest.approx(one)


@EVERY
def test_recompute_keeps_less(part: LayerPart) -> None:
    work, rows = layer_work(layer_of(part), HIDDEN, "flash"), columns(tp=2, sp=True)
    kept = [float(kept_bytes(work, rows, WORKLOAD.precision, mode)[0]) for mode in (NONE, SELECTIVE, FULL)]
    assert kept[0] >= kept[1] > kept[2] > 0


@EVERY
def test_a_state_is_as_long_as_the_sequence_or_of_one_size(part: LayerPart) -> None:
    if not isinstance(part, Mixer):
        return
    short, long = part.state_bytes(1024), part.state_bytes(65536)
    assert short > 0
    assert long == short if isinstance(part, RecurrentMixer) else long >= short


@EVERY
def test_a_model_of_it_is_planned_and_its_units_bound_tensor_ranks(part: LayerPart) -> None:
    model = model_of(part)
    (plan,) = mw.estimate(model, "tp2.pp2.dp2.mbs1", cluster="8xH100", global_batch=8, seq_len=4096)
    assert plan.estimate.step_time_s > 0
    if isinstance(part, Mixer):
        with pytest.raises(InputError, match=r"tp 3 does not divide the \d+ "):
            mw.estimate(model, "tp3.nosp.mbs1", cluster="3xH100", global_batch=8, seq_len=4096)


@EVERY
def test_it_is_read_as_it_was_written(part: LayerPart) -> None:
    reader = json_reader(ModelSpec)
    assert reader.validate_json(reader.dump_json(model_of(part))) == model_of(part)


def test_heads_that_groups_do_not_share_are_refused() -> None:
    with pytest.raises(InputError, match="kv_heads is 3"):
        Attention(heads=8, kv_heads=3, head_dim=16)
    with pytest.raises(InputError, match="RWKV-5 has none"):
        RwkvTimeMix(version=5, heads=8, head_dim=16, decay_rank=8)
    with pytest.raises(InputError, match="must not exceed"):
        MoeMlp(experts=4, top_k=6, ffn_hidden=8, gated=True)
    with pytest.raises(InputError, match="a window or chunks"):
        Attention(heads=8, kv_heads=8, head_dim=16, window=8, chunk=8)


@EVERY
def test_no_size_of_it_is_silent(part: LayerPart) -> None:
    """Another number or the other of two says another layer: other operators, kept tensors or states."""
    context = LayerContext(hidden=HIDDEN, kernel="flash", dropout=False)
    for field in fields(part):
        value = getattr(part, field.name)
        if field.name == "qk_norm" and getattr(part, "qk_scales", "") == "none":
            continue  # a norm without weights, of what the rotation reads anyway
        if field.name == "relu" and getattr(part, "gated", False):
            continue  # a gate keeps both of its factors, whatever the activation
        if isinstance(value, bool):
            changed = not value
        elif isinstance(value, int) and value and field.name != "version":
            changed = 2 * value
        else:
            continue
        try:
            other = replace(part, **{field.name: changed})
        except InputError:
            continue  # sizes that go with each other
        assert other.work(context) != part.work(context), field.name


@pytest.mark.parametrize("table", [MIXERS, FEED_FORWARDS], ids=["mixers", "feed-forward parts"])
def test_a_table_names_each_kind_as_its_class_does_and_the_shared_tests_walk_it(table: Mapping[str, type]) -> None:
    walked = {type(part) for part in KINDS} | {NoMixer, NoMlp, CrossAttention, Laurel}  # these go with others
    for kind, part in table.items():
        assert next(one.default for one in fields(part) if one.name == "kind") == kind
        assert part in walked


def test_an_unknown_kind_is_told_those_there_are() -> None:
    reader, model = json_reader(ModelSpec), model_of(Attention(heads=8, kv_heads=2, head_dim=16))
    text = reader.dump_json(model).decode().replace('"kind":"grouped"', '"kind":"groupd"')
    with pytest.raises(ValidationError) as found:
        reader.validate_json(text)
    (problem,) = problems_of(found.value, ModelSpec)
    assert all(kind in problem.why for kind in MIXERS)
    assert problem.fix == "did you mean grouped?"
