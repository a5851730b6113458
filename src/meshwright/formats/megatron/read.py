"""A Megatron-LM launch script, or a list of its options, as a plan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any

from meshwright.errors import InputError, Problem, nearest
from meshwright.formats.launch_file import LaunchFile, Said
from meshwright.formats.megatron.layout import read_layout
from meshwright.formats.megatron.model import read_facts
from meshwright.formats.megatron.optimizers import read_optimizer
from meshwright.formats.megatron.options import Values, known_options, read_options
from meshwright.formats.megatron.precision import read_precision
from meshwright.formats.megatron.script import Chosen, chosen
from meshwright.formats.shell import Place, Script, Unknown, Word, processes, read_script, word
from meshwright.specs.row import PlanRow, default_schedule
from meshwright.specs.strategy import RECOMPUTE_MODULES, Dispatcher, ExpertOverlap

_RECOMPUTE = {"full": "full", "selective": "sel"}
_ZERO_OF_STRATEGY = {"no_shard": "z0", "optim": "z1", "optim_grads": "z2", "optim_grads_params": "fsdp"}
_WITHOUT_A_ROW = (
    ("--use-tp-pp-dp-mapping", "pipeline ranks between tensor and data ranks", "leave it out"),
    ("--hybrid-context-parallel", "context groups that change with the sequence", "use --context-parallel-size alone"),
    ("--rampup-batch-size", "a batch that grows", "plan the final batch"),
    ("--cpu-offloading-num-layers", "offloading whole layers", "use --fine-grained-activation-offloading"),
    ("--distribute-saved-activations", "kept inputs spread over tensor ranks", "use --sequence-parallel"),
)


_LAYERS_OF_STAGES = (
    "--num-layers-per-virtual-pipeline-stage",
    "--num-virtual-stages-per-pipeline-rank",
    "--pipeline-model-parallel-layout",
)
MEGATRON_PROGRAMS = ("pretrain_gpt.py", "pretrain_mamba.py", "pretrain_bert.py", "pretrain_t5.py", "pretrain_vlm.py")
"""Entry points of Megatron-LM itself: they add no options that its parser does not have."""
MegatronFlags = LaunchFile
"""What the options of Megatron-LM say."""


def read_flags(source: str | Sequence[str] | Script, *, devices: int | None = None) -> MegatronFlags:
    """Read a launch configuration.

    Args:
        source: a script that was read, the text of one, text of options alone, or a list of words.
        devices: processes of the job; read off the launcher's options by default.

    Returns:
        The plan and everything else that was said, with problems instead of exceptions.
    """
    if isinstance(source, str):
        source = read_script(source)
    if isinstance(source, Script):
        found, notes, problems = chosen(source), _assumed(source), list(_unread(source))
    else:
        found, notes, problems = _of_words(list(source)), [], []
    problems += found.problems
    values = read_options(found.words)
    if found.questions or (not found.words and not problems):
        return MegatronFlags(
            row=None,
            layout=None,
            problems=tuple(problems) or _NO_OPTIONS,
            questions=found.questions,
            notes=tuple(notes),
        )
    if not found.words:
        return MegatronFlags(row=None, layout=None, problems=tuple(problems), notes=tuple(notes))
    problems += values.problems
    own, foreign = _of_the_program(found.program, values)
    problems += own
    notes += [*values.notes, *foreign]
    questions = list(_strays(values))
    started, _ = processes(found.launcher)
    if devices is None:
        devices = _devices(found.launcher, problems, questions)
    elif started not in (None, 1, devices):
        notes.append(f"the script starts {started} processes, the plan is read for {devices} devices")
    facts, fact_problems = read_facts(values)
    derived = list(fact_problems)
    workload = _workload(values, derived)
    row = _row(values, devices, derived)
    layout = _layout(values, row, facts, derived) if row else None
    if row is not None and layout is not None and len(layout) != row.pp * row.vpp:
        vpp = len(layout) // row.pp
        row = replace(row, vpp=vpp, schedule=default_schedule(vpp))
    for flag in _LAYERS_OF_STAGES:
        values.has(flag)  # asked for with the rest, where nothing else is known either
    questions += _questions(values)
    unresolved = tuple(dict.fromkeys(name for unknown in values.hidden.values() for name in unknown.names))
    if questions:
        # What follows from a value nobody knows would be wrong: nothing of it is said.
        row, layout, derived, facts, workload = None, None, [], {}, {}
    return MegatronFlags(
        row=row,
        layout=layout,
        model=facts,
        workload=workload,
        unresolved=unresolved,
        problems=(*problems, *derived),
        questions=tuple(questions),
        said=tuple(_said(values, values.asked)),
        unpriced=tuple(_said(values, set(values.unread))),
        notes=tuple(notes),
    )


_NO_OPTIONS = (
    Problem(
        what="there are no options",
        why="a launch script names them after a .py file",
        fix="name the script that starts pretrain_gpt.py",
        field="options",
    ),
)


def _of_words(words: list[str]) -> Chosen:
    at = next((at for at, one in enumerate(words) if one.endswith(".py")), None)
    if at is not None:
        return Chosen(launcher=tuple(map(word, words[:at])), words=tuple(map(word, words[at + 1 :])), program=words[at])
    first = next((at for at, one in enumerate(words) if one.startswith("--")), len(words))
    return Chosen(words=tuple(map(word, words[first:])))


def _unread(script: Script) -> Iterator[Problem]:
    """What of a script was not read: then an option may have been missed."""
    for why, place in script.broken[:4]:
        yield Problem(what=f"{place} cannot be read", why=why, fix="correct the script there", field="source")
    for path, place in script.missing[:4]:
        why = "what it sets is not known"
        fix = "put the file beside the script"
        yield Problem(what=f"{path[-80:]}, used at {place}, is not here", why=why, fix=fix, field="source")


def _assumed(script: Script) -> list[str]:
    """Names that were taken as not set."""
    notes = []
    names = [name for name in script.assumed if not name.isdigit() and name != "@"]
    if names:
        shown = ", ".join(f"{name} ({script.assumed[name]})" for name in names[:12])
        more = f" and {len(names) - 12} more" if len(names) > 12 else ""
        notes.append(f"taken as not set in the environment: {shown}{more}; --env NAME=VALUE sets one")
    if any(name.isdigit() or name == "@" for name in script.assumed):
        notes.append("taken as started without arguments; --arg VALUE gives one")
    return notes


def _of_the_program(program: str, values: Values) -> tuple[list[Problem], list[str]]:
    """Options Megatron-LM does not have: wrong, or those of a program that adds its own."""
    name = program.rpartition("/")[2]
    if not name or (name in MEGATRON_PROGRAMS and "--deepspeed" not in values.given):
        return list(values.unknown), []
    wrong = [problem for problem in values.unknown if problem.fix and _slip(problem)]
    own = [problem.field for problem in values.unknown if problem not in wrong]
    return wrong, [f"options of {name} itself, not read: {', '.join(own)}"] if own else []


def _slip(problem: Problem) -> bool:
    close = nearest(problem.field, known_options(), count=1)
    return bool(close) and SequenceMatcher(None, problem.field, close[0]).ratio() > 0.9


def _asked(what: str, unknown: Unknown, place: Place | None, field: str) -> Problem:
    """The question for what would settle an unknown."""
    ways = [f"--arg (argument {name})" if name.isdigit() else f"--env {name}=VALUE" for name in unknown.names[:3]]
    ways = ["--arg VALUE ..." if name == "--env @=VALUE" else name for name in ways]
    where = f" ({place})" if place is not None and place.line else ""
    fix = f"give {' or '.join(ways)}" if ways else "write the value into the script"
    return Problem(what=f"{what} is not known{where}", why=f"{unknown.why} ({unknown.place})", fix=fix, field=field)


def _strays(values: Values) -> Iterator[Problem]:
    for place, unknown in values.strays[:8]:
        yield _asked("which options stand here", unknown, place, "options")


def _questions(values: Values) -> Iterator[Problem]:
    """Options that the plan needs and that nobody can know."""
    for flag, unknown in values.open.items():
        yield _asked(flag, unknown, values.places.get(flag), flag)


def _said(values: Values, wanted: set[str]) -> Iterator[Said]:
    """Options of a set with their values, in the order of the script."""
    for flag, found in values.given.items():
        if flag in wanted:
            place = values.places.get(flag)
            shown = str(place) if place is not None and place.line else ""
            yield Said(option=flag, value=" ".join(found), place=shown)


def _devices(launcher: Sequence[Word], problems: list[Problem], questions: list[Problem]) -> int | None:
    """Processes that the launcher starts."""
    found, unknown = processes(launcher)
    if found is None and unknown is not None:
        questions.append(_asked("the number of devices", unknown, None, "devices"))
    elif found is None:
        why = "the data-parallel degree is what is left of the devices"
        fix = "give the number of devices, or a script with torchrun --nproc_per_node and --nnodes"
        problems.append(Problem(what="the number of devices is not said", why=why, fix=fix, field="devices"))
    return found


def _workload(values: Values, problems: list[Problem]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    precision, more = read_precision(values)
    problems += more
    found["precision"] = precision
    for flag, name in (("--seq-length", "seq_len"), ("--global-batch-size", "global_batch")):
        if values.has(flag):
            found[name] = values.whole(flag)
    found["optimizer"], more = read_optimizer(values)
    problems += more
    if values.has("--first-last-layers-bf16") and not (values.has("--fp8-format") or values.has("--fp4-format")):
        why, fix = "all layers compute in 16 bits", "leave it out, or give --fp8-format"
        what = "--first-last-layers-bf16 without 8-bit products"
        problems.append(Problem(what=what, why=why, fix=fix, field="--first-last-layers-bf16"))
    elif values.has("--first-last-layers-bf16"):
        for side, name in (("start", "bf16_first"), ("end", "bf16_last")):
            found[name] = values.whole(f"--num-layers-at-{side}-in-bf16", 1) or None
    unfused = values.text("--attention-backend") in ("unfused", "local")
    found["attention_kernel"] = "materialised" if unfused else "flash"
    return found


def _row(values: Values, devices: int | None, problems: list[Problem]) -> PlanRow | None:
    """Degrees and settings; problems found here make no row only where the degrees are wrong."""
    for flag, what, fix in _WITHOUT_A_ROW:
        if values.has(flag):
            problems.append(Problem(what=f"{flag} has no place in a plan", why=what, fix=fix, field=flag))
    tp = values.whole("--tensor-model-parallel-size", 1)
    pp = values.whole("--pipeline-model-parallel-size", 1)
    cp = values.whole("--context-parallel-size", 1)
    mbs = values.whole("--micro-batch-size")
    moe = values.has("--num-experts")
    ep = values.whole("--expert-model-parallel-size", 1)
    etp = values.whole("--expert-tensor-parallel-size", tp) if moe else 1
    degrees = {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "etp": etp, "--micro-batch-size": mbs}
    wrong = [name for name, degree in degrees.items() if degree < 1]
    problems += [Problem(what=f"{name} is {degrees[name]}", why="must be at least 1", field=name) for name in wrong]
    if wrong or devices is None:
        return None
    model_parallel = tp * pp * cp
    if devices % model_parallel:
        why = f"they must be a multiple of tp {tp} x pp {pp} x cp {cp} = {model_parallel}"
        problems.append(Problem(what=f"there are {devices} devices", why=why, field="devices"))
        return None
    dp = devices // model_parallel
    if (tp * cp * dp) % (ep * etp):
        why = f"ep x etp must divide tp x cp x dp = {tp * cp * dp}"
        problems.append(Problem(what=f"ep {ep} x etp {etp} = {ep * etp}", why=why, field="ep"))
    gbs = values.whole("--global-batch-size", mbs * dp)
    if gbs < 1 or gbs % (mbs * dp):
        why = f"must be a multiple of micro-batch {mbs} x dp {dp} = {mbs * dp}"
        problems.append(Problem(what=f"--global-batch-size is {gbs}", why=why, field="--global-batch-size"))
    if moe and tp > 1 and not values.has("--sequence-parallel"):
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
        schedule=default_schedule(vpp),
        recompute=recompute,
        recompute_layers=count,
        recompute_modules=_modules(values) if recompute == "sel" else ("core_attn",),
        offload=_offload(values, problems),
        dp_overlap=values.has("--overlap-grad-reduce") or values.has("--use-torch-fsdp2"),
    )


_DISPATCHERS: dict[str, Dispatcher] = {"alltoall": "alltoall", "flex": "deduplicated", "allgather": "allgather"}


def _exchange(values: Values, ep: int) -> tuple[Dispatcher, ExpertOverlap]:
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
    """Chunks a worker; where only layers per chunk are said, `_layout` finds it."""
    return max(1, values.whole("--num-virtual-stages-per-pipeline-rank", 1))


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
    if sharding == "fsdp":
        return "hsdp", dp * cp // instances
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
        return f"z{stage}"
    why = "DeepSpeed's file says how states are sharded"
    fix = "give --zero-stage in the script, or check the file with --from deepspeed"
    problems.append(Problem(what="--zero-stage is not given", why=why, fix=fix, field="--zero-stage"))
    return "z0"


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
            letters += letter
            if values.number(share, 1.0) != 1:
                why = "a row offloads all or nothing; it is taken as all"
                problems.append(Problem(what=f"{share} is {values.text(share)}", why=why, field=share))
    return letters


def _layout(values: Values, row: PlanRow, facts: dict[str, Any], problems: list[Problem]) -> tuple[int, ...] | None:
    """Layers of each virtual stage."""
    layers = facts.get("num_layers")
    if values.has("--pipeline-model-parallel-layout"):
        return _said_layout(values, row, facts, problems)
    if layers is None:
        return None
    vpp = row.vpp
    first, last = (values.whole(f"--decoder-{end}-pipeline-num-layers", -1) for end in ("first", "last"))
    extra = [int(values.has(f"--account-for-{end}-in-pipeline-split")) for end in ("embedding", "loss")]
    per_chunk = values.whole("--num-layers-per-virtual-pipeline-stage")
    if per_chunk > 0:
        vpp = max(1, (layers + sum(extra)) // (row.pp * per_chunk))
    ends = [count for count in (first, last) if count >= 0]
    middle = row.pp - len(ends)
    share, rest = divmod(layers + sum(extra) - sum(ends), middle) if middle else (0, layers - sum(ends))
    counts = [share] * row.pp
    if first >= 0:
        counts[0] = first
    if last >= 0:
        counts[-1] = last
    chunks = [divmod(count, vpp) for count in counts]
    if rest or share < 0 or any(left for _, left in chunks):
        why = f"{layers} layers cannot be spread evenly over pp {row.pp} x vpp {vpp}"
        fix = "give --pipeline-model-parallel-layout"
        problems.append(Problem(what=f"--num-layers is {layers}", why=why, fix=fix, field="--num-layers"))
        return None
    stages = [size for _ in range(vpp) for size, _ in chunks]
    stages[0] -= extra[0]
    stages[-1] -= extra[1]
    return tuple(stages)


def _said_layout(
    values: Values, row: PlanRow, facts: dict[str, Any], problems: list[Problem]
) -> tuple[int, ...] | None:
    flag = "--pipeline-model-parallel-layout"
    try:
        stages, mtp = read_layout(values.text(flag))
    except InputError as error:
        problems += error.problems
        return None
    for name, found, rule in (
        ("stages", len(stages) % row.pp, f"{len(stages)} stages must be a multiple of pp {row.pp}"),
        (
            "layers",
            sum(stages) != facts.get("num_layers", sum(stages)),
            f"it holds {sum(stages)} of the model's layers",
        ),
        ("modules", mtp != facts.get("mtp_layers", mtp), f"it holds {mtp} multi-token-prediction modules"),
    ):
        if found:
            problems.append(Problem(what=f"{flag}: {name} do not agree", why=rule, field=flag))
            return None
    return stages
