"""`profile`: this machine's device, measured."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.cli import options
from meshwright.cli.output import Output
from meshwright.cli.values import Gather, given


def profile(
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where the device file goes.", show_default=False),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Of the device.  [default: made of its kind]", show_default=False),
    ] = None,
    seconds: Annotated[
        str | None,
        typer.Option("--seconds", metavar="N", help="To spend, at least.  [default: 60]", show_default=False),
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> int:
    """Measure this machine's own device: products, attention, memory, launches and links, as curves.

    Needs meshwright[jax]. The file is one for `meshwright gpus add`.

    \b
      meshwright profile -o mine.toml --name mine
      MESHWRIGHT_LIBRARY=lib meshwright gpus add mine.toml
    """
    gather = Gather()
    limits = given(seconds=gather.number("--seconds", seconds), name=name, output=output)
    gather.done()
    from meshwright.app.profile import profile as measure

    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    with out.progress("timing kernels"):
        found = measure(**limits)
    out.show(found.to_dict(), lambda _: "\n".join(found.lines()))
    if output is not None:
        out.note(f"written to {output}; `meshwright gpus add {output}` puts {found.device.name} into your library")
    return 0
