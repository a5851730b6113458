"""`models` and `gpus`: the library listed, shown and added to."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.cli import options
from meshwright.cli.output import Output
from meshwright.cli.values import required

models_app = typer.Typer(help="The models known by name.", no_args_is_help=True, rich_markup_mode=None)
gpus_app = typer.Typer(help="The accelerators known by name.", no_args_is_help=True, rich_markup_mode=None)

Force = Annotated[bool, typer.Option("--force", help="Replace your own entry of this name.")]


@models_app.command("list")
def models_list(json: options.Json = False, quiet: options.Quiet = False, no_color: options.NoColor = False) -> None:
    """All models with a name.

    \b
      meshwright models list
      meshwright models list --json | jq -r '.models[].name'
    """
    from meshwright.app.library import list_models
    from meshwright.report import library_tables

    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    out.show(list_models().to_dict(), lambda document: library_tables.model_list(document["models"]))


@models_app.command("show")
def models_show(
    model: options.Model = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> None:
    """One model: parameters, layers, source.

    \b
      meshwright models show llama-3.1-70b
      meshwright models show ./config.json --json
    """
    name = required("MODEL", model)
    from meshwright.app.library import show_model
    from meshwright.report import library_tables

    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    out.show(show_model(name).to_dict(), library_tables.model_card)


@models_app.command("add")
def models_add(
    config: Annotated[
        str | None, typer.Argument(metavar="FILE", help="A config.json, or a folder with one.", show_default=False)
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="How to call it.  [default: as its folder]", show_default=False),
    ] = None,
    library: options.Library = None,
    force: Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> None:
    """Check a config.json and put it into your library directory.

    \b
      meshwright models add ./my-model/config.json --name my-model --library ~/meshwright
      MESHWRIGHT_LIBRARY=~/meshwright meshwright plan my-model --gpus 64xH100
    """
    file = required("FILE", config)
    from meshwright.app.library import add_model
    from meshwright.units import count

    added = add_model(file, library, name=name, force=force)
    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    parameters = count(added.card.model.parameters)
    out.show(added.to_dict(), lambda _: f"{added.card.model.name}: {parameters} parameters, written to {added.path}")


@gpus_app.command("list")
def gpus_list(json: options.Json = False, quiet: options.Quiet = False, no_color: options.NoColor = False) -> None:
    """All accelerators with a name.

    \b
      meshwright gpus list
      meshwright gpus list --json | jq -r '.gpus[].name'
    """
    from meshwright.app.library import list_gpus
    from meshwright.report import library_tables

    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    out.show(list_gpus().to_dict(), lambda document: library_tables.gpu_list(document["gpus"]))


@gpus_app.command("show")
def gpus_show(
    name: Annotated[
        str | None, typer.Argument(metavar="GPU", help="A name or alias of `gpus list`.", show_default=False)
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> None:
    """One accelerator: each number with its basis and source.

    \b
      meshwright gpus show H100
      meshwright gpus show "A100 SXM4 80GB" --json
    """
    gpu = required("GPU", name)
    from meshwright.app.library import show_gpu
    from meshwright.report import library_tables

    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    out.show(show_gpu(gpu).to_dict(), library_tables.gpu_card)


@gpus_app.command("add")
def gpus_add(
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="TOML or JSON: about eight numbers of a data sheet.", show_default=False),
    ] = None,
    library: options.Library = None,
    force: Annotated[
        bool, typer.Option("--force", help="Add it in spite of the linter, and replace your own device of this name.")
    ] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_color: options.NoColor = False,
) -> None:
    """Check a device file and put it into your library directory.

    \b
      meshwright gpus add h100-custom.toml --library ~/meshwright
      MESHWRIGHT_LIBRARY=~/meshwright meshwright plan llama-3-8b --gpus 8xh100-custom

    \b
    The file, with dense peaks, GiB as frameworks see them, GB/s per device and direction:
      name = "h100-custom"
      generation = "hopper"
      bf16_tflops = 989.4
      memory_gib = 79.1
      memory_gb_s = 3350
      [node]
      devices = 8
      scaleup_gb_s = 450
      fabric_gb_s = 50
    """
    path = required("FILE", file)
    from meshwright.app.library import add_gpu
    from meshwright.report import library_tables

    out = Output(as_json=json, quiet=quiet, no_color=no_color)
    added = add_gpu(path, library, force=force)
    out.show(added.to_dict(), library_tables.gpu_added)
