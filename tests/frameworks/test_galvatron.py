"""JSON written for Galvatron, read by Galvatron itself."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.targets.test_round_trip import some, written

utils = pytest.importorskip("galvatron.utils", exc_type=ImportError)
torch = pytest.importorskip("torch")


def parallel_config() -> Any:
    """Galvatron's module of that name, without the packages for GPUs that its package imports."""
    path = Path(utils.__file__).parents[1] / "core" / "runtime" / "hybrid_parallel_config.py"
    spec = spec_from_file_location("galvatron_parallel_config", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("one", list(some("galvatron")), ids=lambda one: f"{one.model.name}-{one.name}")
def test_its_reader_takes_the_plan(one, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "galvatron_config.json"
    file.write_text(written("galvatron", one)[file.name])
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda *group: one.plan.devices)
    args = SimpleNamespace(
        local_rank=1,
        galvatron_config_path=str(file),
        pipeline_type="",
        default_dp_type="",
        embed_sdp=0,
        global_train_batch_size=0,
        chunks=0,
        distributed_checkpoint=None,
        use_ulysses=False,
    )
    layers = SimpleNamespace(layernums=lambda: [one.model.num_layers])
    read = parallel_config().get_hybrid_parallel_configs_api(None, args, lambda config, given: layers)
    strategy, pipeline = one.plan.strategies[0], one.plan.pipelines[0]
    count = one.model.num_layers
    runs = [run for worker in pipeline.workers for chunk in worker.chunks for run in chunk.runs]
    again = [one.plan.strategies[run.strategy].recompute.kind == "full" for run in runs for _ in range(run.layers)]
    assert read["pp_deg"] == len(pipeline.workers)
    assert read["tp_sizes_enc"] == [strategy.tp * strategy.cp] * count
    assert read["use_sp"] == [int(strategy.cp > 1)] * count
    assert read["checkpoint_flags_enc"] == [int(full) for full in again]
    assert read["pp_division"] == [worker.chunks[0].num_layers for worker in pipeline.workers]
    assert read["pp_ranks_enc"] == [stage for stage, held in enumerate(read["pp_division"]) for _ in range(held)]
    assert read["global_train_batch_size"] == one.plan.global_batch
    assert read["default_dp_type"] == {0: "ddp", 2: "zero2", 3: "zero3"}[strategy.data.zero]
    assert args.chunks == pipeline.num_micro_batches
