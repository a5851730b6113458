"""Rows for hypothesis: any well-formed one, and those that Megatron-LM can run."""

from __future__ import annotations

from hypothesis import strategies as st

from meshwright.specs import PlanRow
from meshwright.specs.row import default_schedule

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "chimera", "hanayo", "breadth-first")

powers = st.sampled_from([1, 2, 4, 8])
contexts = st.one_of(
    st.just(()),
    st.tuples(st.tuples(st.sampled_from(["p2p", "a2a", "ag"]), st.sampled_from([2, 4, 8]))),
    st.tuples(st.tuples(st.just("a2a"), st.sampled_from([2, 4])), st.tuples(st.just("p2p"), st.sampled_from([2, 4]))),
)
recomputes = st.one_of(
    st.sampled_from([("none", 0), ("sel", 0), ("full", 0)]),
    st.tuples(st.sampled_from(["block", "uni"]), st.integers(2, 9)),
)


@st.composite
def rows(draw: st.DrawFn, *, megatron: bool = False) -> PlanRow:
    """A row in its normal form: settings without effect have their default."""
    tp, pp, dp, mbs = draw(powers), draw(powers), draw(powers), draw(st.integers(1, 4))
    cp = draw(contexts)
    vpp = draw(st.sampled_from([1, 2, 3])) if pp > 1 or not megatron else 1
    sp = tp == 1 or draw(st.booleans())
    ring = tp > 1 and (sp or not megatron) and draw(st.booleans())
    degree = 1
    for _, level in cp:
        degree *= level
    sharding = draw(st.sampled_from(["z0", "z1", "z2", "z3", "fsdp", "fsdp-keep", "hsdp"]))
    group = 0
    if sharding == "hsdp":
        if dp == 1:
            sharding = "fsdp"
        else:
            group = degree * draw(st.sampled_from([size for size in (1, 2, 4) if size < dp]))
    if megatron and sharding == "fsdp-keep" and pp > 1:
        sharding = "z2"
    recompute, count = draw(recomputes)
    m = draw(st.integers(1, 4)) * (pp if megatron and vpp > 1 else 1)
    schedule = default_schedule(vpp) if megatron else draw(st.sampled_from(SCHEDULES))
    letters = ["", "a"] if megatron else ["", "w", "a", "o", "wa", "wo", "ao", "wao"]
    if megatron and sharding not in ("z0", "fsdp-keep"):
        letters += ["o", "ao"]
    modules = ("core_attn",)
    if recompute == "sel":
        modules = draw(st.sampled_from([("core_attn",), ("moe_act", "layernorm"), ("core_attn", "mlp")]))
    dispatcher, overlap = "alltoall", "none"
    if not megatron:
        dispatcher = draw(st.sampled_from(["alltoall", "allgather", "deduplicated"]))
        overlap = draw(st.sampled_from(["none", "shared", "paired", "paired-wgrad"]))
    return PlanRow(
        tp=tp,
        sp=sp,
        tp_overlap="ring" if ring else "bulk",
        cp=cp,
        pp=pp,
        vpp=vpp,
        dp=dp,
        sharding=sharding,
        shard_group=group,
        mbs=mbs,
        gbs=m * mbs * dp,
        schedule=schedule,
        recompute=recompute,
        recompute_layers=count,
        recompute_modules=modules,
        dispatcher=dispatcher,
        ep_overlap=overlap,
        offload=draw(st.sampled_from(letters)),
        dp_overlap=(megatron and sharding == "fsdp-keep") or draw(st.booleans()),
    )
