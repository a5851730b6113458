"""Plans written for Galvatron, whose models are built by its own trainer without weights of theirs."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from meshwright.library.models import resolve
from meshwright.specs.job import Job
from meshwright.specs.row_of import effective
from meshwright.targets import TARGETS
from tests.frameworks.starts import exported, found_by, gpt, llama, small
from tests.targets.cases import job
from tests.targets.drawn import drawn

if importlib.util.find_spec("galvatron") is None:
    pytest.skip("Galvatron is not installed", allow_module_level=True)

TARGET = TARGETS["galvatron"]
LEAST = 24
"""Plans of equal layers, and of layers that differ."""
SHARDINGS = {0: "NO_SHARD", 2: "SHARD_GRAD_OP", 3: "FULL_SHARD"}
"""Of PyTorch's FSDP, which holds layers of all kinds here."""


def alike(within: Path) -> Iterator[Job]:
    """Drawn plans that it runs, all of whose layers are alike."""
    random = Random("plans that Galvatron builds")
    while True:
        one = drawn("galvatron", random)
        if one is None or TARGET.problems(one):
            continue
        made = replace(one, model=resolve(str(small(one.model, within))))
        if not TARGET.problems(made):
            yield made


def mixed(within: Path) -> Iterator[Job]:
    """Plans that give each layer a strategy of its own, as its own search does."""
    random, read = Random("layers that differ"), TARGET.read
    assert read is not None
    base = job("dp16.fsdp", model=str(llama(within, 8, 16)))
    while True:
        pp = random.choice((1, 2, 4))
        degrees = [random.choice([1, 2, 4]) for _ in range(8)]
        cuts = sorted(random.sample(range(1, 8), pp - 1))
        columns = {
            "tp_sizes_enc": degrees,
            "tp_consecutive_flags": [1] * 8,
            "dp_types_enc": random.choices((0, 1), k=8),
            "use_sp": [random.choice((0, 1)) if degree > 1 else 0 for degree in degrees],
            "checkpoint": random.choices((0, 1), k=8),
            "pp_division": [end - start for start, end in zip([0, *cuts], [*cuts, 8], strict=True)],
        }
        keys = {name: ",".join(map(str, values)) for name, values in columns.items()}
        keys |= {"pp_deg": pp, "global_bsz": 64, "chunks": random.choice((1, 2, 4)), "world_size": 16}
        keys |= {"pipeline_type": random.choice(("gpipe", "pipedream_flush"))}
        keys |= {"default_dp_type": random.choice(("ddp", "zero2", "zero3"))}
        launch = read({"galvatron_config.json": json.dumps(keys)}, 16)
        assert not launch.problems
        if launch.plan is not None:
            made = replace(base, plan=launch.plan, workload=replace(base.workload, global_batch=64), name=None)
            if not TARGET.problems(made):
                yield made


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Job, dict[str, Any]]]:
    """Plans with what one rank of each holds."""
    within, models = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("models")
    random = Random("ranks")
    jobs = [
        *islice(alike(models), LEAST),
        *islice(mixed(models), LEAST),
        job("tp2.pp2.dp4.z2", model=str(gpt(models, 4, 8))),
    ]
    runs = list(exported([("galvatron", one) for one in jobs], within))
    words = [f"{folder}:{one.plan.devices}:{random.randrange(one.plan.devices)}" for folder, _, one in runs]
    return list(zip(jobs, found_by("galvatron_start.py", words), strict=True))


def test_its_trainer_builds_every_plan(started: list[tuple[Job, dict[str, Any]]]) -> None:
    refused = [(one.model.name, one.name, held) for one, held in started if "refused" in held]
    assert not refused


def test_its_trainer_divides_each_layer_as_the_plan_does(started: list[tuple[Job, dict[str, Any]]]) -> None:
    for one, held in started:
        pipeline = one.plan.pipelines[0]
        chunk = pipeline.workers[held["stage"]].chunks[0]
        layers = [effective(one.plan.strategies[run.strategy]) for run in chunk.runs for _ in range(run.layers)]
        assert held["stages"] == len(pipeline.workers), one.name
        assert len(held["layers"]) == len(layers), one.name
        kind = next(one.model.layers())
        norms = kind.norm_parameters(one.model.hidden)
        for strategy, layer in zip(layers, held["layers"], strict=True):
            ranks = one.plan.devices // len(pipeline.workers) // strategy.tp
            assert (layer["tp"], layer["ulysses"]) == (strategy.tp, strategy.cp), one.name
            assert layer["ranks"] == ranks == strategy.dp * strategy.cp, one.name
            assert layer["sharding"] == SHARDINGS[strategy.data.zero if ranks > 1 else 0], one.name
            assert layer["recomputes"] == (strategy.recompute.kind == "full"), one.name
            if one.model.family == "llama":
                parts = kind.parameters(one.model.hidden) - norms
                assert layer["parameters"] == parts // strategy.tp + norms, one.name
            said = (layer["computes_in"], layer["kept_in"], layer["reduced_in"])
            assert said == ("torch.bfloat16", "torch.float32", "torch.float32"), one.name


def test_its_trainer_works_through_the_batch_as_the_plan_does(started: list[tuple[Job, dict[str, Any]]]) -> None:
    for one, held in started:
        pipeline = one.plan.pipelines[0]
        sharded = any(effective(strategy).data.zero >= 2 for strategy in one.plan.strategies)
        assert (held["batch"], held["micro_batches"]) == (one.plan.global_batch, pipeline.num_micro_batches), one.name
        if len(pipeline.workers) > 1:
            assert held["gpipe"] == (pipeline.schedule.name == "gpipe"), one.name
        # Whole gradients between micro-batches are more memory than shards of them.
        assert held["reduces_at_the_end"] == (not sharded or pipeline.num_micro_batches == 1), one.name


def test_its_trainer_builds_the_model_of_the_config(started: list[tuple[Job, dict[str, Any]]]) -> None:
    for one, held in started:
        kind, model = next(one.model.layers()), one.model
        heads = getattr(kind.attention, "heads", 0)
        assert held["sizes"] == [model.num_layers, model.hidden, heads, kind.mlp.tensor_width], one.name
        assert held["seq_len"] == one.workload.seq_len, one.name
        if model.family == "llama":
            assert (held["key_value_heads"], held["vocab"]) == (getattr(kind.attention, "kv_heads", 0), model.vocab)
            assert held["epsilon"] == [3e-5], one.name
            assert held["slowest"] == [pytest.approx(10000 ** -(6 / 8))], one.name  # heads are 8 wide


@pytest.mark.parametrize(
    "more",
    [
        {"head_dim": 16},
        {"tie_word_embeddings": True},
        {"attention_bias": True},
        {"rope_theta": 5e5},
        {"vocab_size": 511},
    ],
)
def test_another_llama_than_its_own_is_refused(more: dict[str, Any], tmp_path: Path) -> None:
    line = "tp2.dp8.fsdp"
    assert not TARGET.problems(job(line, model=str(llama(tmp_path / "own", 8, 16))))
    assert TARGET.problems(job(line, model=str(llama(tmp_path / "other", 8, 16, **more))))
