"""Degrees and settings of Megatron-LM's options as the row of a plan."""

from __future__ import annotations

import math

from meshwright.errors import Problem
from meshwright.formats.megatron.earlier import EXPERTS_OVER_DATA
from meshwright.formats.megatron.options import Values
from meshwright.specs.row import PlanRow, default_schedule
from meshwright.specs.strategy import RECOMPUTE_MODULES, ExpertOverlap

_ZERO_OF_STRATEGY = {"no_shard": "z0", "optim": "z1", "optim_grads": "z2", "optim_grads_params": "fsdp"}
_WITHOUT_A_ROW = (
    ("--use-tp-pp-dp-mapping", "pipeline ranks between tensor and data ranks", "leave it out"),
    ("--hybrid-context-parallel", "context groups that change with the sequence", "use --context-parallel-size alone"),
    ("--cpu-offloading-num-layers", "offloading whole layers", "use --fine-grained-activation-offloading"),
    ("--distribute-saved-activations", "kept inputs spread over tensor ranks", "use --sequence-parallel"),
)


def _too_small(name: str, degree: int, values: Values) -> Problem:
    if name.startswith("--") and not values.has(name):
        fix = "give it, or name the script that starts the training"
        return Problem(what=f"{name} is not given", why="Megatron-LM does not start without it", fix=fix, field=name)
    return Problem(what=f"{name} is {degree}", why="must be at least 1", field=name)


def read_row(values: Values, devices: int | None, problems: list[Problem]) -> PlanRow | None:
    """Degrees and settings; problems found here make no row only where the degrees are wrong.

    Args:
        values: the options that were given.
        devices: the number of devices of the job, None where nobody says.
        problems: those found are added.
    """
    for flag, what, fix in _WITHOUT_A_ROW:
        if values.has(flag):
            problems.append(Problem(what=f"{flag} has no place in a plan", why=what, fix=fix, field=flag))
    tp = values.whole("--tensor-model-parallel-size", 1)
    pp = values.whole("--pipeline-model-parallel-size", 1)
    cp = values.whole("--context-parallel-size", 1)
    mbs = values.whole("--micro-batch-size")
    ep = values.whole("--expert-model-parallel-size", 1)
    moe = values.has("--num-experts") or (ep > 1 and not values.has("--num-layers"))  # else the model is said elsewhere
    etp = values.whole("--expert-tensor-parallel-size", tp) if moe else 1
    degrees = {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "etp": etp, "--micro-batch-size": mbs}
    wrong = [name for name, degree in degrees.items() if degree < 1]
    problems += [_too_small(name, degrees[name], values) for name in wrong]
    if wrong or devices is None:
        return None
    model_parallel = tp * pp * cp
    if devices % model_parallel:
        why = f"they must be a multiple of tp {tp} x pp {pp} x cp {cp} = {model_parallel}"
        problems.append(Problem(what=f"there are {devices} devices", why=why, field="devices"))
        return None
    dp = devices // model_parallel
    if values.has(EXPERTS_OVER_DATA):  # each data rank holds its share, or a part of one expert where there are fewer
        experts = values.whole("--num-experts", 1)
        ep, etp = min(dp, experts), 1
        if dp > ep or experts % ep:
            why = f"experts are cut where {experts} of them do not divide over {dp} data ranks, which no row says"
            problems.append(Problem(what=f"{EXPERTS_OVER_DATA} is given", why=why, field=EXPERTS_OVER_DATA))
    if (tp * cp * dp) % (ep * etp):
        why = f"ep x etp must divide tp x cp x dp = {tp * cp * dp}"
        problems.append(Problem(what=f"ep {ep} x etp {etp} = {ep * etp}", why=why, field="ep"))
    gbs = values.whole("--global-batch-size", mbs * dp)
    if gbs < 1 or gbs % (mbs * dp):
        why = f"must be a multiple of micro-batch {mbs} x dp {dp} = {mbs * dp}"
        problems.append(Problem(what=f"--global-batch-size is {gbs}", why=why, field="--global-batch-size"))
    forked = values.has("--deepspeed")
    if forked and values.has("--no-pipeline-parallel") and pp > 1:
        flag, why = "--no-pipeline-parallel", "it starts without it only where there are several stages"
        problems.append(Problem(what=f"{flag} with {pp} stages", why=why, fix="leave it out", field=flag))
    if moe and tp > 1 and not (forked or values.has("--sequence-parallel")):
        why = "experts together with tensor parallelism need it"
        problems.append(Problem(what="--sequence-parallel is not given", why=why, field="--sequence-parallel"))
    if values.has("--tp-comm-overlap") and tp > 1 and not values.has("--sequence-parallel"):
        why = "it needs sequence parallelism"
        problems.append(Problem(what="--tp-comm-overlap is given", why=why, field="--tp-comm-overlap"))
    sharding, group = _sharding(values, dp, cp, problems)
    dispatcher, ep_overlap = _exchange(values, ep) if moe else ("alltoall", "none")
    recompute, count = _recompute(values, problems)
    vpp = _vpp(values, pp)
    return PlanRow(
        tp=tp,
        sp=tp == 1 or values.has("--sequence-parallel"),
        tp_overlap="ring" if tp > 1 and values.has("--tp-comm-overlap") else "bulk",
        cp=_context(values, cp, problems),
        pp=pp,
        vpp=vpp,
        ep=ep,
        etp=etp,
        dispatcher=dispatcher,
        ep_overlap=ep_overlap,
        dp=dp,
        sharding=sharding,
        shard_group=group,
        mbs=mbs,
        gbs=gbs,
        schedule=schedule_in(values, pp, vpp),
        recompute=recompute,
        recompute_layers=count,
        recompute_modules=_modules(values) if recompute == "sel" else ("core_attn",),
        offload=_offload(values, problems),
        dp_overlap=values.has("--overlap-grad-reduce") or values.has("--use-torch-fsdp2"),
    )


_DISPATCHERS: dict[str, str] = {"alltoall": "alltoall", "flex": "deduplicated", "allgather": "allgather"}


def _exchange(values: Values, ep: int) -> tuple[str, ExpertOverlap]:
    """How tokens reach their experts, and what runs beside."""
    if ep == 1:
        return "alltoall", "none"
    overlap: ExpertOverlap = "none"
    if values.has("--moe-shared-expert-overlap"):
        overlap = "shared"
    if values.has("--overlap-moe-expert-parallel-comm"):
        overlap = "paired-wgrad" if values.has("--delay-wgrad-compute") else "paired"
    return _DISPATCHERS.get(values.text("--moe-token-dispatcher-type", "allgather"), "alltoall"), overlap


def _vpp(values: Values, pp: int) -> int:
    """Chunks a worker; where only layers per chunk are said, the layout says them."""
    if values.text(_OF_MINDSPEED) == "dualpipev":
        return 2
    return max(1, values.whole("--num-virtual-stages-per-pipeline-rank", 1))


_OF_MINDSPEED = "--schedules-method"
_GROUP = "--microbatch-group-size-per-virtual-pipeline-stage"


def schedule_in(values: Values, pp: int, vpp: int) -> str:
    """The schedule that a script says, by its name in plans.

    Args:
        values: the options of the script.
        pp: workers.
        vpp: chunks per worker.
    """
    if values.has("--enable-zbh1-pipeline"):
        return "zb-h1"
    group = values.whole(_GROUP, pp) if vpp > 1 else pp
    default = default_schedule(vpp) if group == pp else f"{default_schedule(vpp)}-group{group}"
    return values.text(_OF_MINDSPEED) or default


def _context(values: Values, cp: int, problems: list[Problem]) -> tuple[tuple[str, int], ...]:
    if cp == 1:
        return ()
    kinds = dict.fromkeys(values.all("--cp-comm-type", ("p2p",)))
    kind = next(iter(kinds), "p2p")
    if len(kinds) > 1:
        problems.append(Problem(what=f"--cp-comm-type is {' '.join(kinds)}", why="all layers must have one kind"))
    if kind == "a2a+p2p":
        flag = "--hierarchical-context-parallel-sizes"
        sizes = [int(size) for size in values.all(flag) if size.isdecimal() and len(size) < 8]
        if len(sizes) != 2 or math.prod(sizes) != cp:
            why = f"must be two degrees, all-to-all and ring, whose product is cp {cp}"
            problems.append(Problem(what=f"{flag} is {sizes or 'not given'}", why=why, field=flag))
            return (("p2p", cp),)
        return tuple(level for level in (("a2a", sizes[0]), ("p2p", sizes[1])) if level[1] > 1)
    names = {"p2p": "p2p", "a2a": "a2a", "all_gather": "ag", "allgather": "ag"}
    if kind not in names:
        why = "must be p2p, a2a, all_gather or a2a+p2p"
        problems.append(Problem(what=f"--cp-comm-type is {kind!r}", why=why, field="--cp-comm-type"))
    return ((names.get(kind, "p2p"), cp),)


_IN_GROUPS = {"fsdp": "hsdp", "z1": "z1in"}
"""Shardings by what they share inside each of several groups."""


def _sharding(values: Values, dp: int, cp: int, problems: list[Problem]) -> tuple[str, int]:
    if values.has("--use-torch-fsdp2"):
        return ("fsdp-keep" if values.has("--torch-fsdp2-no-reshard-after-forward") else "fsdp"), 0
    instances = values.whole("--num-distributed-optimizer-instances", 1)
    if values.has("--use-megatron-fsdp"):
        strategy = values.text("--data-parallel-sharding-strategy", "optim_grads_params")
        sharding = _ZERO_OF_STRATEGY.get(strategy, "fsdp")
        if sharding == "fsdp" and values.has("--megatron-fsdp-main-params-dtype"):
            sharding = "z3"
    else:
        sharding = "z1" if values.has("--use-distributed-optimizer") else "z0"
        if values.has("--deepspeed"):
            sharding = _deepspeed_sharding(values, problems)
    if instances <= 1:
        return sharding, 0
    if instances > 1 and (dp * cp) % instances:
        flag = "--num-distributed-optimizer-instances"
        problems.append(Problem(what=f"{flag} is {instances}", why=f"must divide dp x cp = {dp * cp}", field=flag))
        return sharding, 0
    if sharding in _IN_GROUPS:
        return _IN_GROUPS[sharding], dp * cp // instances
    why = f"{sharding} in {instances} groups needs more than a row; it is taken as one group"
    problems.append(Problem(what=f"--num-distributed-optimizer-instances is {instances}", why=why))
    return sharding, 0


def _modules(values: Values) -> tuple[str, ...]:
    """What selective recompute makes again, as far as it can be planned."""
    stated = values.given.get("--recompute-modules", ("core_attn",))
    return tuple(dict.fromkeys(module for module in stated if module in RECOMPUTE_MODULES)) or ("core_attn",)


def _deepspeed_sharding(values: Values, problems: list[Problem]) -> str:
    """ZeRO as the command line says it; DeepSpeed's own file may say more."""
    values.has("--deepspeed_config")
    stage = values.whole("--zero-stage", -1)
    if stage in (0, 1, 2, 3):
        values.hidden.pop("--deepspeed_config", None)  # where its file lies changes nothing then
        return f"z{stage or _engine_shards(values)}"
    why = "DeepSpeed's file says how states are sharded"
    fix = "give --set zero-stage=N, or check the file with --from deepspeed"
    problems.append(Problem(what="--zero-stage is not given", why=why, fix=fix, field="--zero-stage"))
    return "z0"


def _engine_shards(values: Values) -> int:
    """The stage that DeepSpeed's pipeline keeps to under bf16 where ZeRO is off: its optimizer shards its states.

    Source: `_do_optimizer_sanity_check` in deepspeed/runtime/engine.py and bf16_optimizer.py of deepspeed 0.19.8.
    """
    return int(values.has("--bf16") and not values.has("--no-pipeline-parallel"))


def _recompute(values: Values, problems: list[Problem]) -> tuple[str, int]:
    granularity = values.text("--recompute-granularity")
    if values.has("--recompute-activations"):
        granularity = "selective"
    if not granularity:
        return "none", 0
    if granularity == "selective":
        modules = values.all("--recompute-modules", ("core_attn",))
        unknown = [module for module in modules if module not in RECOMPUTE_MODULES]
        if unknown:
            why = f"{', '.join(unknown)} cannot be planned"
            problems.append(Problem(what=f"--recompute-modules is {' '.join(modules)}", why=why))
        return "sel", 0
    method = values.text("--recompute-method")
    count = values.whole("--recompute-num-layers", 0)
    if method not in ("uniform", "block") or count < 1:
        why = "full recompute needs --recompute-method uniform or block and --recompute-num-layers of at least 1"
        problems.append(Problem(what=f"--recompute-method is {method!r}, --recompute-num-layers {count}", why=why))
        return "full", 0
    if method == "uniform":
        return ("full", 0) if count == 1 else ("uni", count)
    return "block", count


def _offload(values: Values, problems: list[Problem]) -> str:
    letters = ""
    for letter, switch, share in (
        ("a", "--fine-grained-activation-offloading", "--activation-offload-fraction"),
        ("o", "--optimizer-cpu-offload", "--optimizer-offload-fraction"),
    ):
        if values.has(switch):
            # DeepSpeed takes gradients to the host with the optimizer.
            letters += "og" if letter == "o" and values.has("--deepspeed") else letter
            if values.number(share, 1.0) != 1:
                why = "a row offloads all or nothing; it is taken as all"
                problems.append(Problem(what=f"{share} is {values.text(share)}", why=why, field=share))
    return letters
