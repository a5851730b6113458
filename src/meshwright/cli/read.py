"""`explain` and `compare`: why a plan is what it is, and where two plans differ."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.cli import options
from meshwright.cli.output import Output
from meshwright.cli.values import Gather, missing
from meshwright.errors import MeshwrightError

WRITE_ONE = "name a plan file, as `meshwright plan ... -o plans.json` writes it"


def explain(
    plan: options.PlanFile = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> None:
    """Why this plan: the ladder from plain data parallelism, its neighbours, what it is sensitive to.

    \b
      meshwright plan llama-3.1-70b --gpus 64xH100 -o plans.json
      meshwright explain plans.json
      meshwright explain plans.json#2
    """
    gather = Gather()
    if plan is None:
        gather.problem(missing("PLAN", WRITE_ONE))
    gather.done()
    from meshwright.app.explain import explain as reason

    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    with out.progress("explaining"):
        found = reason(plan or "")
    out.show(found.to_dict(), lambda _: found)


def compare(
    first: options.PlanFile = None,
    second: Annotated[str | None, typer.Argument(metavar="PLAN", help="Another plan file.", show_default=False)] = None,
    timeline: Annotated[bool, typer.Option("--timeline", help="Also draw one step of each, on one time axis.")] = False,
    svg: Annotated[
        str | None, typer.Option("--svg", metavar="FILE", help="Write that drawing as a figure.", show_default=False)
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> None:
    """Where the seconds and bytes of two plans differ.

    \b
      meshwright plan llama-3.1-70b --gpus 64xH100 -o plans.json
      meshwright compare plans.json#1 plans.json#2
      meshwright compare plans.json#1 plans.json#2 --timeline
    """
    gather = Gather()
    if first is None or second is None:
        gather.problem(missing("PLAN" if first is None else "the second PLAN", WRITE_ONE))
    from meshwright.app.compare import compare as hold_together
    from meshwright.formats.writing import check_file, write_file
    from meshwright.planning.plan_source import job_of

    if svg is not None:
        gather.attempt(lambda: check_file(svg))
    gather.done()

    one, two = first or "", second or ""
    try:
        found = hold_together(one, two)
    except MeshwrightError:
        gather.attempt(lambda: job_of(one))
        gather.attempt(lambda: job_of(two))
        gather.done()
        raise
    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    if svg is not None:
        write_file(svg, found.svg())
        out.note(f"figure written to {svg}")
    out.show(found.to_dict(), lambda _: found)
    if timeline and not json:
        out.print(found.timeline())
