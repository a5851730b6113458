"""`calculon`: Calculon's model on Calculon's own three JSON files."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.cli import options
from meshwright.cli.output import Output, write
from meshwright.cli.values import Gather, missing
from meshwright.errors import Problem

calculon_app = typer.Typer(
    help="Calculon's model on Calculon's own three JSON files: applications, executions, systems.",
    no_args_is_help=True,
)

App = Annotated[
    str | None,
    typer.Argument(metavar="APP", help="Application: gpt3-175B, or a JSON file.", show_default=False),
]
System = Annotated[
    str | None,
    typer.Argument(metavar="SYS", help="System: a100_80g, or a JSON file.", show_default=False),
]
Fixed = Annotated[bool, typer.Option("--fixed", help="Mend the errors of the original that the manual lists.")]


@calculon_app.command("estimate")
def estimate(
    app: App = None,
    execution: Annotated[
        str | None, typer.Argument(metavar="EXE", help="Execution: a JSON file.", show_default=False)
    ] = None,
    system: System = None,
    batch: Annotated[
        str | None,
        typer.Option("--batch", metavar="FILE", help="Rows {app, system, execution}, one a line.", show_default=False),
    ] = None,
    layers: Annotated[bool, typer.Option("--layers", "-l", help="Also the block, layer by layer (--json).")] = False,
    fixed: Fixed = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> None:
    """One execution's 96 statistics, or those of a file of executions.

    \b
      meshwright calculon estimate gpt3-175B execution.json a100_80g --json
      meshwright calculon estimate --batch rows.jsonl
    """
    gather = Gather()
    if batch is not None:
        if app is not None:
            gather.problem(
                Problem(
                    what="--batch is given beside APP",
                    why="every row of the file names its own application, system and execution",
                    fix="leave out APP, EXE and SYS, or --batch",
                    field="--batch",
                )
            )
        gather.done()
        _rows(batch, fixed=fixed)
        return
    for name, value in (("APP", app), ("EXE", execution), ("SYS", system)):
        if value is None:
            gather.problem(missing(name, "meshwright calculon estimate APP EXE SYS"))
    gather.done()
    from meshwright.app.calculon import calculon_estimate

    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    found = calculon_estimate(app or "", execution or "", system or "", layers=layers, fixed=fixed)
    out.show(found.to_dict(), lambda _: found)


def _rows(path: str, *, fixed: bool) -> None:
    """One JSON line per row, as the rows come."""
    import json

    from meshwright.app.calculon import calculon_batch
    from meshwright.app.calculon_rows import rows_of

    with rows_of(path) as lines:
        for answer in calculon_batch(lines, fixed=fixed):
            write(json.dumps(answer, allow_nan=False) + "\n")
