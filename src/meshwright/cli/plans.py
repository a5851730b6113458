"""`plan`, `estimate` and `check`: the best plans, one plan's price, one plan's faults."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli import options
from meshwright.cli.output import Output
from meshwright.cli.values import Gather, given, missing
from meshwright.errors import Problem
from meshwright.records import as_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from meshwright.app.plan_set import PlanSet


def plan(
    model: options.Model = None,
    gpus: options.Gpus = None,
    cluster: options.Cluster = None,
    seq: options.Seq = None,
    gbs: options.Gbs = None,
    tokens_per_step: options.TokensPerStep = None,
    dtype: options.Dtype = None,
    optimizer: options.Optimizer = None,
    attention_kernel: options.AttentionKernel = None,
    expert_imbalance: options.ExpertImbalance = None,
    top: Annotated[str, typer.Option("--top", metavar="K", help="How many plans.")] = "5",
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            metavar="NAME",
            help="time; memory: the least among plans at most 10% slower than the quickest; cost: the cheapest step on "
            "any part of the cluster that is looked at.  [default: time]",
            show_default=False,
        ),
    ] = None,
    max_step_time: options.MaxStepTime = None,
    max_price_per_step: options.MaxPricePerStep = None,
    days: options.Days = None,
    max_price: options.MaxPrice = None,
    pin: options.Pin = None,
    forbid: options.Forbid = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            "--schedule",
            metavar="NAME,...|all",
            help="Pipeline schedules to use; all: the whole catalogue.  [default: 1f1b, gpipe, interleaved]",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="NAME", help="Only plans this runs: megatron.", show_default=False),
    ] = None,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="Also the front of time, memory, devices and cost; takes longer.")
    ] = False,
    tolerance: Annotated[
        str | None,
        typer.Option(
            "--tolerance",
            metavar="X",
            help="Groups whose devices are alike within it, 0.1 for 10%, are planned as one island.",
            show_default=False,
        ),
    ] = None,
    parallelizer: Annotated[
        str | None,
        typer.Option(
            "--parallelizer",
            metavar="NAME,...",
            help="Who plans slices of the model on equal devices, and plans are composed of: native, layerwise, "
            "calculon, galvatron, compiler, or module:Class of your own.",
            show_default=False,
        ),
    ] = None,
    tokens: options.Tokens = None,
    price: options.Price = None,
    profiles: options.Profiles = None,
    calibration: options.Calibration = None,
    replan_from: options.ReplanFrom = None,
    lost: options.Lost = None,
    added: options.Added = None,
    output: options.PlanOutput = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> None:
    """The best plans, with verdict, reasons, runner-up and certificate.

    \b
      meshwright plan llama-3.1-70b --gpus 64xH100
      meshwright plan ./config.json --cluster cluster.toml --seq 8192 --gbs 1024 -o plans.json
      meshwright plan deepseek-v3 --gpus 2048xH800 --pin ep=64 --target megatron --tokens 15T
      meshwright plan llama-3.1-70b --cluster regions.toml --max-step-time 40s
      meshwright plan llama-3-8b --gpus 16xH100,8xA100-80 --parallelizer native,calculon
      meshwright plan OPT-350 --gpus 8xA100-40,8xV100-16 --profiles DIR --gbs 256
      meshwright plan --replan-from plans.json#1 --lost 8xH100
    """
    gather = Gather()
    if replan_from is not None or lost is not None or added is not None:
        from meshwright.cli.replan import replan_after

        given_too = {"MODEL": model, "--gpus": gpus, "--cluster": cluster, "--seq": seq, "--gbs": gbs,
                     "--tokens-per-step": tokens_per_step, "--dtype": dtype, "--optimizer": optimizer,
                     "--profiles": profiles, "--schedule": schedule, "--target": target,
                     "--parallelizer": parallelizer, "--objective": objective, "--max-step-time": max_step_time,
                     "--max-price-per-step": max_price_per_step, "--days": days,
                     "--max-price": max_price}  # fmt: skip
        out = Output(as_json=json, quiet=quiet, no_color=no_color)
        replan_after(gather, out, replan_from, lost, added, top, pin, forbid, output, given_too)
        return
    if profiles is not None:
        unused = {"--seq": seq, "--tokens-per-step": tokens_per_step, "--dtype": dtype, "--optimizer": optimizer,
                  "--pin": pin, "--forbid": forbid, "--schedule": schedule, "--target": target,
                  "--calibration": calibration, "--tolerance": tolerance,
                  "--parallelizer": parallelizer}  # fmt: skip
        untold = {"--tokens": tokens, "--days": days, "--max-price": max_price}
        for name in (name for name, value in untold.items() if value is not None):
            why, fix = "profiles do not tell how many tokens a sequence has", "--max-step-time or --max-price-per-step"
            gather.problem(Problem(what=f"{name} with --profiles", why=why, fix=f"limit one step: {fix}", field=name))
        for name in (name for name, value in unused.items() if value is not None):
            why = "measured profiles are fp32 with Adam at one sequence length, in 1F1B"
            gather.problem(Problem(what=f"{name} with --profiles", why=why, fix=f"leave {name} out", field=name))
        if objective == "memory":
            why = "measured plans are compared by their time or their cost"
            gather.problem(Problem(what="--objective memory with --profiles", why=why, fix="--objective time"))
        batch, rate = gather.whole("--gbs", gbs, high=2**20), gather.number("--price", price, zero=True)
        limits = given(objective=objective, max_step_time=max_step_time, max_price_per_step=max_price_per_step)
        gather.attempt(lambda: _checked_aim(limits))
        aims = given(price=rate, **limits)
        measured = plan_with_profiles(gather, model, profiles, batch, {"gpus": gpus, "cluster": cluster, **aims})
        document = measured.to_dict()
        if output is not None:
            from meshwright.formats.writing import write_file

            write_file(output, as_json(document))
        Output(as_json=json, quiet=quiet, no_color=no_color).show(document, lambda _: measured)
        return
    count = gather.whole("--top", top, high=1000)
    rate = gather.number("--price", price, zero=True)
    alike = gather.number("--tolerance", tolerance, zero=True, high=100)
    inputs = given(
        cluster=cluster,
        gpus=gpus,
        seq_len=seq,
        global_batch=gbs,
        tokens_per_step=tokens_per_step,
        dtype=dtype,
        optimizer=optimizer,
        attention_kernel=attention_kernel,
        expert_imbalance=gather.number("--expert-imbalance", expert_imbalance),
        tokens=tokens,
    )
    from meshwright.app.plan import plan as search
    from meshwright.formats.writing import check_file, write_file
    from meshwright.planning.axes import check_axes, target_rule
    from meshwright.planning.one_kind import check_options

    wanted = given(
        objective=objective,
        max_step_time=max_step_time,
        max_price_per_step=max_price_per_step,
        days=days,
        max_price=max_price,
    )
    gather.attempt(lambda: check_options(count or 1))
    gather.attempt(lambda: _checked_aim(wanted))
    gather.attempt(lambda: target_rule(target))
    gather.attempt(lambda: check_axes(pin=pin or (), forbid=forbid or (), schedule=schedule))
    if output is not None:
        gather.attempt(lambda: check_file(output))
    named = None
    if parallelizer is not None:
        from meshwright.planning.compose.sources.parallelizers.registry import parallelizers_named

        named = gather.attempt(lambda: parallelizers_named(parallelizer))
    gather.with_inputs(model, inputs)
    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    limits = given(
        top=count,
        price=rate,
        pin=pin,
        forbid=forbid,
        schedule=schedule,
        target=target,
        tolerance=alike,
        parallelizer=named,
    )
    with out.progress("searching"):
        found = search(model or "", pareto=pareto, calibration=calibration, **inputs, **limits, **wanted)
    document = found.to_dict()
    if output is not None:
        write_file(output, as_json(document))
        out.note(f"{len(found)} plan{'s' if len(found) != 1 else ''} written to {output}")
    out.show(document, lambda _: found)


def _checked_aim(wanted: Mapping[str, Any]) -> None:
    """What the objective and the limits say, so that their problems come with all others."""
    from meshwright.planning.objectives import aim_of

    aim_of(**wanted)


def plan_with_profiles(
    gather: Gather, model: str | None, profiles: str, global_batch: int | None, inputs: Mapping[str, Any]
) -> PlanSet:
    """The plan from measured profiles; the problems of the options first."""
    from meshwright.app.plan_mixed import plan_measured

    if model is None:
        gather.problem(missing("MODEL"))
    if global_batch is None and not gather.errors:
        gather.problem(missing("--gbs", "say the sequences of a step: --gbs 256"))
    gather.done()
    return plan_measured(model or "", profiles=profiles, global_batch=global_batch or 1, **inputs)


def estimate(
    model: options.Model = None,
    plan: options.PlanOption = None,
    gpus: options.Gpus = None,
    cluster: options.Cluster = None,
    seq: options.Seq = None,
    gbs: options.Gbs = None,
    tokens_per_step: options.TokensPerStep = None,
    dtype: options.Dtype = None,
    optimizer: options.Optimizer = None,
    attention_kernel: options.AttentionKernel = None,
    expert_imbalance: options.ExpertImbalance = None,
    tokens: options.Tokens = None,
    price: options.Price = None,
    calibration: options.Calibration = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            "--schedule",
            metavar="NAME,...|all",
            help="Compare the plan under these pipeline schedules.",
            show_default=False,
        ),
    ] = None,
    output: options.PlanOutput = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> None:
    """One plan's step time, memory and breakdown, whether it fits or not.

    \b
      meshwright estimate llama-3.1-70b --plan tp8.pp4.mbs1.z1.rc-full --gpus 64xH100
      meshwright estimate --plan plans.json#2
      meshwright estimate llama-3.1-70b --plan tp8.pp4.mbs1.z1.rc-full --gpus 64xH100 --schedule all
    """
    gather = Gather()
    rate = gather.number("--price", price, zero=True)
    if plan is None:
        gather.problem(missing("--plan", "--plan tp8.pp4.mbs1.z1, or a plan file"))
    inputs = given(
        cluster=cluster,
        gpus=gpus,
        seq_len=seq,
        global_batch=gbs,
        tokens_per_step=tokens_per_step,
        dtype=dtype,
        optimizer=optimizer,
        attention_kernel=attention_kernel,
        expert_imbalance=gather.number("--expert-imbalance", expert_imbalance),
        tokens=tokens,
    )
    from meshwright.app.estimate import estimate as price_plan
    from meshwright.app.schedules_of_plan import schedules_of_plan
    from meshwright.formats.writing import check_file, write_file
    from meshwright.planning.axes import schedule_names

    if output is not None:
        gather.attempt(lambda: check_file(output))
    if schedule is not None:
        gather.attempt(lambda: schedule_names(schedule, refused=True))
        if output is not None:
            why = "a plan set holds plans, and one is compared with itself"
            gather.problem(Problem(what="both --schedule and --output are given", why=why, fix="drop one of them"))
    gather.with_inputs(model, inputs)
    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    if schedule is not None:
        priced = given(price=rate, calibration=calibration)
        table = schedules_of_plan(model, plan or "", schedules=schedule, **inputs, **priced)
        out.show(table.to_dict(), lambda _: table)
        return
    found = price_plan(model, plan or "", **inputs, **given(price=rate, calibration=calibration))
    document = found.to_dict()
    if output is not None:
        write_file(output, as_json(document))
        out.note(f"1 plan written to {output}")
    out.show(document, lambda _: found)


def check(
    model: options.Model = None,
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="With --from: that framework's launch script.", show_default=False),
    ] = None,
    plan: options.PlanOption = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="megatron", help="Check FILE instead of --plan.", show_default=False),
    ] = None,
    oom_log: Annotated[
        str | None,
        typer.Option("--oom-log", metavar="LOG", help="Of a run that ran out of memory: why it did."),
    ] = None,
    gpus: options.Gpus = None,
    cluster: options.Cluster = None,
    seq: options.Seq = None,
    gbs: options.Gbs = None,
    tokens_per_step: options.TokensPerStep = None,
    dtype: options.Dtype = None,
    optimizer: options.Optimizer = None,
    attention_kernel: options.AttentionKernel = None,
    expert_imbalance: options.ExpertImbalance = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> int:
    """Is a plan legal, does it fit, is it beaten, and which smallest change repairs it. Exit 5 where it must not stay.

    \b
      meshwright check llama-3.1-70b --plan tp8.pp4.mbs1.z1 --gpus 64xH100
      meshwright check llama-3.1-70b --from megatron train.sh --gpus 64xH100
      meshwright check --plan plan.json
    """
    gather = Gather()
    _one_source(gather, model, plan, source, file)
    inputs = given(
        cluster=cluster,
        gpus=gpus,
        seq_len=seq,
        global_batch=gbs,
        tokens_per_step=tokens_per_step,
        dtype=dtype,
        optimizer=optimizer,
        attention_kernel=attention_kernel,
        expert_imbalance=gather.number("--expert-imbalance", expert_imbalance),
    )
    gather.with_inputs(model, inputs)
    from meshwright.app.check import check as examine

    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    with out.progress("checking"):
        if source is not None:
            found = examine(model, source=Path(file or ""), source_format=source, oom_log=oom_log, **inputs)
        else:
            found = examine(model, plan or "", oom_log=oom_log, **inputs)
    out.show(found.to_dict(), lambda _: found)
    return found.exit_code


def _one_source(gather: Gather, model: str | None, plan: str | None, source: str | None, file: str | None) -> None:
    """Exactly one of --plan and --from with FILE."""
    if plan is None and source is None:
        fix = "--plan tp8.pp4.mbs1.z1, a plan file, or --from megatron FILE"
        gather.problem(missing("--plan", fix))
    elif plan is not None and source is not None:
        gather.problem(Problem(what="both --plan and --from are given", why="one plan is checked", fix="keep one"))
    if source is not None and file is None and model is not None and Path(model).suffix == ".sh":
        gather.problem(missing("MODEL", f"write `check MODEL --from {source} {model}`"))
        gather.done()
    if source is not None and file is None:
        fix = "write `check MODEL --from megatron FILE`"
        gather.problem(missing("FILE", fix))
    elif file is not None and source is None:
        fix = "write --from megatron before it" if plan is None else "leave it out"
        gather.problem(Problem(what=f"{file[:80]!r} is one argument too many", why="FILE goes with --from", fix=fix))
