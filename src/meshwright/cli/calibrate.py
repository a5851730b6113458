"""`calibrate`: measured runs in, better numbers out."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.cli import options
from meshwright.cli.output import Output
from meshwright.cli.values import Gather, missing


def calibrate(
    measured: Annotated[
        list[str] | None,
        typer.Argument(metavar="MEASURED.csv...", help="Measured runs, one a row.", show_default=False),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where the numbers go, as JSON.", show_default=False),
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> int:
    """Fit the numbers behind predictions to measured runs.

    Written only if runs of sources that are left out are predicted better. A file called calibration.json
    in the folder that MESHWRIGHT_LIBRARY names is read from then on.

    \b
      meshwright calibrate measured.csv -o calibration.json
    """
    gather = Gather()
    if not measured:
        gather.problem(missing("MEASURED.csv", "name a file of measured runs"))
    gather.done()
    assert measured is not None
    from meshwright.app.calibrate import calibrate as fit
    from meshwright.report.calibration_table import calibration_tables

    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    with out.progress("fitting"):
        result = fit(measured, output)
    if json:
        out.show(result.to_dict(), lambda _: "")
    else:
        out.print(*calibration_tables(result.record))
    if output is not None:
        out.note(f"{len(result.record['numbers'])} numbers fitted to {result.record['runs']} runs, written to {output}")
    return 0
