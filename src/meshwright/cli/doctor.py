"""`doctor`: what is installed and whether it works."""

from __future__ import annotations

from meshwright.cli import options
from meshwright.cli.output import Output


def doctor(json: options.Json = False, quiet: options.Quiet = False, no_color: options.NoColor = False) -> int:
    """What is installed, and whether planning works here. Exit code 0 or 1.

    \b
      meshwright doctor
    """
    from meshwright.app.doctor import doctor as examine
    from meshwright.report.doctor_table import doctor_table

    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    with out.progress("checking"):
        report = examine()
    out.show(report.to_dict(), doctor_table)
    return 0 if report.ok else 1
