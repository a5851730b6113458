"""`clusters`: how a description of a cluster is understood."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.cli import options
from meshwright.cli.output import Output, write
from meshwright.cli.values import Gather, given, required

clusters_app = typer.Typer(
    help="How a description of a cluster is understood.", no_args_is_help=True, rich_markup_mode=None
)


@clusters_app.callback()
def _clusters() -> None:
    pass


@clusters_app.command("show")
def clusters_show(
    source: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="A description of a cluster, or 64xH100,64xA100-80.", show_default=False),
    ] = None,
    tolerance: Annotated[
        str | None,
        typer.Option(
            "--tolerance",
            metavar="X",
            help="How far apart devices of an island may be.  [default: 0.1]",
            show_default=False,
        ),
    ] = None,
    toml: Annotated[bool, typer.Option("--toml", help="Write it as a cluster file, to edit.")] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> None:
    """Groups, links, islands and what was taken for granted.

    \b
    FILE is a cluster file, a measured bandwidth matrix (CSV), or what these print:
      nvidia-smi topo -m, scontrol show node, sinfo -o "%N %G %T %f", kubectl get nodes -o json
    \b
      meshwright clusters show nodes.json
      meshwright clusters show bandwidth.csv --tolerance 0.2 --toml > cluster.toml
    """  # fmt: skip
    name = required("FILE", source)
    gather = Gather()
    number = gather.number("--tolerance", tolerance, zero=True, high=100)
    gather.done()
    from meshwright.app.clusters import show_cluster
    from meshwright.report.cluster_tables import cluster_card

    card = show_cluster(name, **given(tolerance=number))
    if toml and not json:
        write(card.to_toml())
        return
    document = card.to_dict() | ({"toml": card.to_toml()} if toml else {})
    Output(as_json=json, quiet=quiet, no_color=no_color).show(document, cluster_card)
