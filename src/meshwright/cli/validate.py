"""`validate`: measured runs against predictions."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.cli import options
from meshwright.cli.output import Output, print_error
from meshwright.cli.values import Gather, missing


def validate(
    measured: Annotated[
        str | None, typer.Argument(metavar="MEASURED.csv", help="Measured runs, one a row.", show_default=False)
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where the predictions go, as CSV.", show_default=False),
    ] = None,
    fail_above: Annotated[
        str | None,
        typer.Option(
            "--fail-above", metavar="PCT", help="Exit 5 if the median error is above this.", show_default=False
        ),
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> int:
    """Predict every measured run and score the predictions.

    \b
      meshwright validate measured.csv -o predictions.csv
      meshwright validate measured.csv --fail-above 15
    """
    gather = Gather()
    if measured is None:
        gather.problem(missing("MEASURED.csv", "name a file of measured runs"))
    limit = gather.number("--fail-above", fail_above, zero=True, high=1e6)
    gather.done()
    assert measured is not None
    from meshwright.app.validate import AboveLimit, BrokenRows
    from meshwright.app.validate import validate as score
    from meshwright.report.score_table import score_table

    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    failed: AboveLimit | BrokenRows | None = None
    try:
        with out.progress("predicting"):
            result = score(measured, output, limit)
    except (AboveLimit, BrokenRows) as error:
        result, failed = error.result, error
    if json:
        out.show(result.to_dict(), lambda _: "")
    else:
        out.print(*(score_table(metric, scores) for metric, scores in result.scores))
    if output is not None:
        out.note(f"{result.predicted} of {len(result.predictions)} rows predicted, written to {output}")
    return 0 if failed is None else print_error(failed, as_json=False)
