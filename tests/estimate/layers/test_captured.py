"""CUDA graphs of parts of layers: the host launches a captured part at once and the rest one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.layers.captured import captured_parts
from meshwright.estimate.layers.work import price_work
from meshwright.estimate.layers.work_seconds import WorkSeconds
from meshwright.library.clusters import resolve_gpus
from meshwright.library.models import spec
from meshwright.library.software import software
from meshwright.ops.layers import layer_work
from meshwright.specs.operators import LayerWork
from meshwright.specs.workload import Workload
from tests.strategies.columns import columns

ROUTER = ("moe_router", "moe_preprocess")


def experts() -> LayerWork:
    model = spec("deepseek-v3")
    return layer_work(model.last_layer(), model.hidden, "flash")


def named(work: LayerWork, captured: tuple[str, ...], *, shared_beside: bool) -> dict[str, str]:
    names = (op.name for op in work.ops)
    return dict(zip(names, captured_parts(work, captured, shared_beside=shared_beside), strict=True))


def test_parts_of_a_layer_of_experts_end_where_tokens_travel() -> None:
    work = experts()
    parts = named(work, ("attn", *ROUTER), shared_beside=False)

    assert {parts[name] for name in ("attention norm", "core attention", "attention residual")} == {"attn"}
    assert {parts[name] for name in ("mlp norm", "router", "top-k", "shared expert up")} == {"moe_router"}
    assert parts["permute"] == "moe_preprocess"
    assert {parts[name] for name in ("dispatch", "experts up", "experts down", "unpermute", "mlp residual")} == {""}


def test_shared_experts_beside_exchanges_are_in_no_graph() -> None:
    work = experts()
    parts = named(work, ROUTER, shared_beside=True)

    assert (parts["shared expert up"], parts["router"]) == ("", "moe_router")


def test_a_dense_layer_is_attention_and_feed_forward_part() -> None:
    model = spec("llama-3.1-8b")
    work = layer_work(model.last_layer(), model.hidden, "flash")

    assert set(captured_parts(work, ("attn", "mlp"), shared_beside=False)) == {"attn", "mlp"}
    assert set(captured_parts(work, ROUTER, shared_beside=False)) == {""}


@pytest.mark.parametrize("captured", [("attn",), ROUTER, ("attn", *ROUTER)])
def test_a_captured_part_is_one_launch_each_way_and_takes_the_device_as_long(captured: tuple[str, ...]) -> None:
    workload = Workload(seq_len=4096, global_batch=8)
    hardware = hardware_of(resolve_gpus("8xH100").groups[0], workload)
    work = experts()
    parts = captured_parts(work, captured, shared_beside=False)
    graphs = replace(hardware, software=replace(hardware.software, captured=captured))
    rest = replace(work, ops=tuple(op for op, part in zip(work.ops, parts, strict=True) if not part))

    def priced(of: LayerWork, *, replayed: bool) -> WorkSeconds:
        return price_work(of, columns(mbs=1, ep=8), graphs if replayed else hardware, workload)

    whole, replayed, alone = priced(work, replayed=False), priced(work, replayed=True), priced(rest, replayed=False)
    for phase in ("forward", "backward"):
        ours, theirs, others = (getattr(one, phase) for one in (replayed, whole, alone))
        assert np.ravel(ours.operators)[0] == pytest.approx(np.ravel(others.operators)[0] + len(captured))
        assert np.ravel(ours.operators)[0] < np.ravel(theirs.operators)[0]
        assert ours.compute_s == pytest.approx(theirs.compute_s)


def test_frameworks_that_capture_parts_are_megatron_core_in_all_else() -> None:
    whole, part = software("megatron-core"), software("megatron-core-graphs-router")

    assert part.captured == ROUTER
    assert replace(part, name=whole.name, captured=(), source=whole.source) == whole
