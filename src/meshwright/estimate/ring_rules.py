"""What goes with weights that travel round a ring of data ranks (WeiPipe)."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.errors import Problem
from meshwright.specs.strategy import LayerStrategy


def ring_problems(strategy: LayerStrategy, *, layers: int, workers: int, experts: bool) -> Iterator[Problem]:
    """What a strategy and its pipeline say beside a ring and cannot have.

    Args:
        strategy: whose weights travel.
        layers: of the model.
        workers: of the pipeline.
        experts: whether some layers have experts.
    """
    data, field = strategy.data, "data.passing"
    ranks = data.shard * strategy.cp
    if ranks < 2:
        why, fix = "a ring has two ranks or more", "use z0, or dp2 and more"
        yield Problem(what="weipipe on one data rank", why=why, fix=fix, field=field)
    elif layers < ranks:
        why, near = "at any time each rank has a layer or more", max(n for n in range(1, layers + 1) if ranks % n == 0)
        fix = f"use dp{near}.tp{ranks // near * strategy.tp}, or fsdp" if near > 1 else "use fsdp"
        yield Problem(what=f"weipipe of {ranks} ranks with {layers} layers", why=why, fix=fix, field=field)
    if data.zero < 3 or not data.reshard or data.family != "zero":
        why, fix = "each rank keeps the layers that it updates and no others", "use zero 3 of family zero with reshard"
        yield Problem(what=f"passing ring with zero {data.zero}, family {data.family}", why=why, fix=fix, field=field)
    if data.replicate > 1 or data.across:
        why, fix = "one ring holds one copy of the weights", "replicate = 1, across = 0"
        yield Problem(what="several rings, or one over several pipelines", why=why, fix=fix, field=field)
    beside = (
        ("pp", workers, "the ring is the pipeline: every rank runs all layers, a turn behind the rank before it"),
        ("cp", strategy.cp, "ranks of one sequence would need the same layer at the same time"),
        ("ep", strategy.expert.ep, "ranks that exchange tokens would need the same layer at the same time"),
    )
    for name, degree, why in beside:
        if degree > 1:
            yield Problem(what=f"weipipe with {name}{degree}", why=why, fix=f"{name}1, or fsdp", field=field)
    tp, etp = strategy.tp, strategy.expert.etp
    if experts and etp != tp and strategy.expert.ep == 1:
        why = "an expert is split over the tensor ranks of its layer, which travels with all its weights"
        fix = f"etp{tp}" if tp > 1 else "etp1, or fsdp"
        yield Problem(what=f"weipipe with etp{etp} and tp{tp}", why=why, fix=fix, field=field)
    if data.secondary_shard:
        why, fix = "weights come round again for backward", "leave hpz out"
        yield Problem(what=f"weipipe with hpz{data.secondary_shard}", why=why, fix=fix, field=field)
    if strategy.offload.weights or strategy.offload.gradients:
        why, fix = "weights and gradients are always on their way between devices", "off-o, or leave it out"
        yield Problem(what="weipipe with weights or gradients on the host", why=why, fix=fix, field=field)
