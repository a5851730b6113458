"""Which pipelines are part of a space."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.estimate.layers.items import FULL, NONE, Item
from meshwright.schedules import Schedule, schedule_named
from meshwright.search import geometry
from meshwright.search.geometry import ShapeFactory
from meshwright.search.paths import Lengths, longest_of, order_free_lengths, path_items
from meshwright.search.space import Space, most_chunks
from meshwright.shapes import Float
from meshwright.specs import LayerRun, ModelSpec, Workload
from tests.search.spaces import DENSE, WINDOWED, model

WORKLOAD = Workload(seq_len=1024, global_batch=8)
LAYERS = 18


def factory(spec: ModelSpec | None = None, space: Space | None = None) -> ShapeFactory:
    """Of a small model of equal layers."""
    return ShapeFactory.of(spec or dense(), WORKLOAD, space or Space())


def dense(*, tied: bool = False, mtp: int = 0) -> ModelSpec:
    return model(LayerRun(layers=(DENSE,), repeats=LAYERS), tied=tied, mtp=mtp)


def standing(
    shapes: ShapeFactory,
    p: int,
    *,
    part: str,
    schedule: str = "1f1b",
    ways: tuple[tuple[str, int], ...] = (("none", 0),),
) -> Float[np.ndarray, "shapes workers chunks"]:
    """How often items of a part stand in each chunk, all recompute modes together."""
    found = schedule_named(schedule)
    work = shapes.counts(found, p, 2 if schedule == "zb-v" else 1, ways).work
    return np.asarray(work[..., [item.part == part for item in shapes.items]].sum(axis=-1))


@pytest.mark.parametrize(
    ("schedule", "p", "m", "chunks"),
    [
        ("dualpipe", 16, 960, 4),  # its order repeats, so its table is short
        ("dualpipev", 16, 960, 4),
        ("chimera", 16, 960, 4),
        ("terapipe", 16, 960, 4),
        ("hanayo", 16, 64, 4),  # whole tables
        ("hanayo", 16, 128, 2),
        ("hanayo", 16, 960, 0),
        ("zb-auto", 8, 16, 1),
        ("zb-auto", 8, 17, 0),
    ],
)
def test_orders_that_repeat_are_tried_with_any_number_of_micro_batches(
    schedule: str, p: int, m: int, chunks: int
) -> None:
    assert most_chunks(schedule_named(schedule), p, m) == chunks


def test_ways_to_recompute_go_by_quarters_of_the_largest_chunk() -> None:
    """18 layers on 2 workers are 11 and, beside the head, 7: 2.75, 5.5 and 8.25 up; of one layer no block is left."""
    shapes = factory()
    assert sorted(shapes.layout.split(2)) == [7, 11]
    ways = shapes.recomputes(2, 1)
    assert [layers for word, layers in ways if word == "block"] == [3, 6, 9]
    assert (ways[0], ways[-1]) == (("none", 0), ("full", 0))
    assert [layers for word, layers in shapes.recomputes(LAYERS, 1) if word == "block"] == []


def test_layers_of_a_chunk_are_those_of_its_split_under_the_mode_they_recompute() -> None:
    shapes = factory()
    split = np.array(shapes.layout.split(4))
    ways = (("none", 0), ("block", 3), ("full", 0))
    work = shapes.counts(schedule_named("1f1b"), 4, 1, ways).work[:, :, 0]
    layers = [item.part == "layer" for item in shapes.items]
    bare = [item.part == "layer" and item.recompute == shapes.items[0].recompute for item in shapes.items]
    assert split.sum() == LAYERS
    assert (work[..., layers].sum(axis=-1) == split).all()
    assert work[..., bare].sum(axis=-1).tolist() == [split.tolist(), np.maximum(split - 3, 0).tolist(), [0] * 4]


def test_layers_of_two_kinds_stand_beside_each_other_under_every_mode() -> None:
    shapes = factory(model(LayerRun(layers=(DENSE, WINDOWED), repeats=9)))
    ways = (("none", 0), ("full", 0))
    work = shapes.counts(schedule_named("1f1b"), 4, 1, ways).work.sum(axis=(1, 2))
    for kind in (DENSE, WINDOWED):
        for number, mode in enumerate((NONE, FULL)):
            assert work[number, shapes.items.index(Item("layer", kind, mode))] == 9


def test_ends_stand_at_the_ends() -> None:
    shapes = factory()
    assert standing(shapes, 4, part="embedding").tolist() == [[[1], [0], [0], [0]]]
    assert standing(shapes, 4, part="head").tolist() == [[[0], [0], [0], [1]]]
    assert standing(shapes, 4, part="tie").sum() == standing(shapes, 4, part="copy").sum() == 0


def test_a_tied_table_is_taken_back_where_both_ends_stand_on_a_worker() -> None:
    tied = factory(dense(tied=True))
    assert standing(tied, 1, part="tie").tolist() == [[[1]]]
    assert standing(tied, 4, part="tie").sum() == 0
    # The V of zb-v ends on the worker where it begins.
    assert standing(tied, 4, part="tie", schedule="zb-v").tolist() == [[[0, 1], [0, 0], [0, 0], [0, 0]]]


def test_a_prediction_module_away_from_the_embedding_has_a_copy_of_its_table() -> None:
    predicting = factory(dense(mtp=2))
    assert standing(predicting, 4, part="mtp").tolist() == [[[0], [0], [0], [2]]]
    assert standing(predicting, 4, part="copy").tolist() == [[[0], [0], [0], [1]]]
    assert standing(predicting, 1, part="copy").sum() == 0


def test_pipelines_are_bound_by_a_formula_or_built_when_asked_and_made_once() -> None:
    shapes = factory(space=Space(pins=(("schedule", ("1f1b", "interleaved", "hanayo")), ("vpp", (1, 2)))))
    all_of_them = {(schedule.name, v) for schedule, v in shapes.pipelines(2, 4)}
    others = {(schedule.name, v) for schedule, v in shapes.others(2, 4)}
    tables = shapes.shapes(2, 4)
    assert tables is not None
    assert others == {("hanayo", 2)}
    assert {(one.schedule.name, one.v) for one in tables.pipelines} == all_of_them - others
    assert shapes.shapes(2, 4) is tables


def test_shapes_made_until_the_time_is_spent_are_not_kept_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = factory()
    every = len(shapes.pipelines(2, 4))
    assert every > 2
    with monkeypatch.context() as hurried:
        hurried.setattr(geometry, "BUILT_BETWEEN_LOOKS", 2)
        hurried.setattr(geometry, "spent", lambda: True)
        some = shapes.shapes(2, 4)
    assert some is not None
    assert len(some.pipelines) == 2
    whole = shapes.shapes(2, 4)
    assert whole is not None
    assert len(whole.pipelines) == every


def test_a_chunk_weighs_its_layers_and_the_last_one_the_head() -> None:
    shapes = factory()
    flop, layers = shapes._weights(schedule_named("1f1b"), 4, 1)
    split = np.array(shapes.layout.split(4))
    assert layers[:, 0].tolist() == split.tolist()
    each = flop[0, 0] / split[0]
    assert flop[:3, 0] == pytest.approx(each * split[:3])
    assert flop[3, 0] == pytest.approx(each * split[3] + shapes.layout.tail_flop)


@pytest.mark.parametrize(("schedule", "v"), [("1f1b", 1), ("interleaved", 2), ("zb-v", 2)])
@pytest.mark.parametrize("p", [2, 3, 5])
def test_a_template_holds_the_paths_that_are_longest_of_its_typical_batch(schedule: str, v: int, p: int) -> None:
    shapes, found, m = factory(), schedule_named(schedule), geometry.TYPICAL_MICRO_BATCHES
    template = shapes.template(found, p, v, "none", 0)
    lengths = order_free_lengths(found, p, m, v)
    longest = lengths[longest_of(lengths, *shapes._weights(found, p, v))]
    forward, backward, weights = path_items(longest, shapes.counts(found, p, v, (("none", 0),)).of_shape(0))
    assert template.forward(m) == pytest.approx(forward)
    assert template.backward(m) == pytest.approx(backward)
    assert template.weight(m) == pytest.approx(weights)


@pytest.mark.parametrize("again", range(1, LAYERS))
def test_a_prediction_module_is_made_again_where_all_layers_of_its_stage_are(again: int) -> None:
    shapes = factory(dense(mtp=1))
    for p in (1, 2, 3):
        work = shapes.counts(schedule_named("1f1b"), p, 1, (("block", again),)).work[0]
        held = {
            item.recompute: float(work[-1, :, place].sum())
            for place, item in enumerate(shapes.items)
            if item.part == "mtp"
        }
        layers = work[-1][:, [item.part == "layer" for item in shapes.items]].sum()
        assert held == dict.fromkeys(held, 0.0) | {FULL if again >= layers else NONE: 1.0}
        parts = LAYERS + 3 + (p > 1)  # away from the embedding the module has a copy of its table
        assert work.sum() == parts, "every layer, both edges and the module stand once"


def test_a_worker_that_shadows_the_next_one_has_its_work_too() -> None:
    counts = factory().counts(schedule_named("bamboo"), 4, 1, (("none", 0), ("full", 0)))
    own = counts.work.sum(axis=2)
    assert counts.shadow is not None
    for worker in range(4):
        assert (counts.shadow[:, worker] == own[:, (worker + 1) % 4]).all()


@pytest.mark.parametrize(("m", "looked"), [(15, 1), (16, 1), (17, 0)])
def test_critical_paths_are_looked_for_in_tables_that_are_not_too_large(
    m: int, looked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four workers of two chunks each, at most 128 passes in either direction: sixteen micro-batches."""
    asked: list[int] = []

    def critical_lengths(schedule: Schedule, p: int, m: int, v: int, weights: object) -> Lengths:
        asked.append(m)
        return order_free_lengths(schedule, p, m, v)

    monkeypatch.setattr(geometry, "MOST_PASSES", 4 * 2 * 16)
    monkeypatch.setattr(geometry, "critical_lengths", critical_lengths)
    factory()._lengths(schedule_named("hanayo"), 4, m, 2)
    assert asked == [m] * looked
