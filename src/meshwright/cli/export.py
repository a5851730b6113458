"""`export`: a plan as the files that start a framework."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.cli import options
from meshwright.cli.output import Output
from meshwright.cli.values import Gather, missing


def export(
    plan: options.PlanFile = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="TARGET", help="The framework: megatron, torch-csv.", show_default=False),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="DIR", help="A new or empty folder.", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that holds files.")] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> None:
    """Write a plan as the files that start today's framework; refuse what the framework cannot express.

    \b
      meshwright plan llama-3.1-70b --gpus 64xH100 -o plans.json
      meshwright export plans.json#1 --to megatron -o launch
      MEGATRON=~/Megatron-LM bash launch/train.sh
      meshwright export plans.json#1 --to torch-csv -o pipeline
    """
    gather = Gather()
    if plan is None:
        gather.problem(missing("PLAN", "name a plan file, as `meshwright plan ... -o plans.json` writes it"))
    if to is None:
        gather.problem(missing("--to", "--to megatron"))
    if output is None:
        gather.problem(missing("-o DIR", "-o launch"))
    gather.done()
    assert plan is not None
    assert to is not None
    assert output is not None
    from meshwright.app.export import export as write

    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    written = write(plan, to, output, force=force)
    out.warn(written.warnings)
    if json:
        out.show(written.to_dict(), lambda _: "")
        return
    title = f"{written.name or 'the plan'} for {written.target}, in {written.directory}:"
    files = [f"  {name}  {len(text.encode('utf-8')):,} bytes" for name, text in written.files]
    notes = [f"note: {note}" for note in written.notes]
    out.print("\n".join([title, *files, *notes, f"start it there with: {written.start}"]))
