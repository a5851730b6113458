"""`calibrate`: measured runs in, better numbers out."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.cli import options
from meshwright.cli.output import Output
from meshwright.cli.values import Gather, given, missing
from meshwright.errors import Problem


def calibrate(
    measured: Annotated[
        list[str] | None,
        typer.Argument(metavar="MEASURED.csv...", help="Measured runs, one a row.", show_default=False),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where the numbers go, as JSON.", show_default=False),
    ] = None,
    from_log: Annotated[
        str | None,
        typer.Option(
            "--from-log",
            metavar="FILE",
            help="Instead: a training log, or a CSV of steps, of --plan.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="With --from-log: its model.", show_default=False)
    ] = None,
    plan: options.PlanOption = None,
    framework: Annotated[
        str | None,
        typer.Option(
            "--framework",
            metavar="NAME",
            help="That wrote the log: megatron, nemo, torchtitan, deepspeed, transformers or csv.  "
            "[default: told by its lines]",
            show_default=False,
        ),
    ] = None,
    gpus: options.Gpus = None,
    cluster: options.Cluster = None,
    seq: options.Seq = None,
    gbs: options.Gbs = None,
    dtype: options.Dtype = None,
    calibration: options.Calibration = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> int:
    """Fit the numbers behind predictions to measured runs, or move them by one step of your own.

    Numbers fitted to runs are written only if runs of sources that are left out are predicted better. A file
    called calibration.json in the folder that MESHWRIGHT_LIBRARY names is read from then on; --calibration
    names one for one command.

    \b
      meshwright calibrate measured.csv -o calibration.json
      meshwright calibrate --from-log train.log --model llama-3.1-8b --plan tp2.mbs1 --gpus 8xH100 -o run.json
    """
    gather = Gather()
    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    if from_log is not None:
        _one_of(gather, measured, plan)
        from meshwright.app.calibrate_from_log import calibrate_from_log

        where = given(gpus=gpus, cluster=cluster, seq_len=seq, global_batch=gbs, dtype=dtype, framework=framework)
        learned = calibrate_from_log(from_log, model, plan or "", output, calibration=calibration, **where)
        out.show(learned.to_dict(), lambda _: "\n".join(learned.lines()))
        if output is not None:
            out.note(f"written to {output}; --calibration {output} predicts with it")
        return 0
    if not measured:
        gather.problem(missing("MEASURED.csv", "name a file of measured runs"))
    gather.done()
    assert measured is not None
    from meshwright.app.calibrate import calibrate as fit
    from meshwright.report.calibration_table import calibration_tables

    with out.progress("fitting"):
        result = fit(measured, output)
    if json:
        out.show(result.to_dict(), lambda _: "")
    else:
        out.print(*calibration_tables(result.record))
    if output is not None:
        out.note(f"{len(result.record['numbers'])} numbers fitted to {result.record['runs']} runs, written to {output}")
    return 0


def _one_of(gather: Gather, measured: list[str] | None, plan: str | None) -> None:
    """Runs or one log, and the log's plan."""
    if measured:
        why = "many runs are fitted, or one log moves the numbers"
        gather.problem(Problem(what="both MEASURED.csv and --from-log are given", why=why, fix="keep one of them"))
    if plan is None:
        gather.problem(missing("--plan", "say the plan that ran: --plan tp8.pp4.mbs1.z1, or a plan file"))
    gather.done()
