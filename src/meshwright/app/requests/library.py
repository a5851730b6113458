"""What may be asked of the library: `models`, `gpus`, `clusters` and `doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from meshwright.app.requests.plan import PICTURE
from meshwright.fields.field import ask
from meshwright.fields.job import MODEL_HELP, NAME
from meshwright.fields.kinds import FieldKind, Flag, Number, OutputFile
from meshwright.fields.request import Request

FOLDER = "Library folder to write to; MESHWRIGHT_LIBRARY by default."
DIRECTORY = FieldKind(metavar="DIR")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListModelsRequest(Request):
    """All models with a name."""

    examples: ClassVar = ("models list", "models list --json | jq -r '.models[].name'")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowModelRequest(Request):
    """One model: parameters, layers, source."""

    examples: ClassVar = ("models show llama-3.1-70b", "models show ./config.json --json")
    positional: ClassVar = ("model",)

    model: str = ask(MODEL_HELP, metavar="MODEL", argument=True, required="")


@dataclass(frozen=True, slots=True, kw_only=True)
class AddModelRequest(Request):
    """Check a config.json and put it into your library directory."""

    examples: ClassVar = (
        "models add ./my-model/config.json --name my-model --library ~/meshwright",
        "plan my-model --gpus 64xH100",
    )
    positional: ClassVar = ("config", "library")

    config: Any = ask("A config.json, or a folder with one.", metavar="FILE", argument=True, required="")
    name: str | None = ask("Name of the entry.", NAME, usual="as its folder")
    library: Any = ask(FOLDER, DIRECTORY)
    force: bool = ask("Replace an entry of yours with this name.", Flag())


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGpusRequest(Request):
    """All accelerators with a name."""

    examples: ClassVar = ("gpus list", "gpus list --json | jq -r '.gpus[].name'")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowGpuRequest(Request):
    """One accelerator: each number with its basis and source."""

    examples: ClassVar = ("gpus show H100", 'gpus show "A100 SXM4 80GB" --json')
    positional: ClassVar = ("name",)

    name: str = ask("A name or alias of `gpus list`.", metavar="GPU", argument=True, required="")


@dataclass(frozen=True, slots=True, kw_only=True)
class AddGpuRequest(Request):
    """Check a device file and put it into your library directory.

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

    examples: ClassVar = ("gpus add h100-custom.toml --library ~/meshwright", "plan llama-3-8b --gpus 8xh100-custom")
    positional: ClassVar = ("file", "library")

    file: Any = ask(
        "TOML or JSON file: about eight numbers of the data sheet.", metavar="FILE", argument=True, required=""
    )
    library: Any = ask(FOLDER, DIRECTORY)
    force: bool = ask("Add it despite findings, and replace a device of yours with this name.", Flag())


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowClusterRequest(Request):
    """Groups, links, islands and assumptions of a cluster.

    \b
    FILE is a cluster file, a measured bandwidth matrix (CSV), or what these print:
      nvidia-smi topo -m, scontrol show node, sinfo -o "%N %G %T %f", kubectl get nodes -o json
    """

    examples: ClassVar = (
        "clusters show nodes.json",
        "clusters show bandwidth.csv --tolerance 0.2 --toml > cluster.toml",
    )
    positional: ClassVar = ("source", "tolerance")

    source: Any = ask("Cluster description, or 64xH100,64xA100-80.", metavar="FILE", argument=True, required="")
    tolerance: float = ask(
        "Largest relative difference between devices of one island.",
        Number(zero=True, high=100),
        default=0.1,
        usual="0.1",
    )
    toml: bool = ask("Print it as a cluster file.", Flag(), python=False)
    svg: str | None = ask(PICTURE, OutputFile(), python=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorRequest(Request):
    """What is installed, and whether planning works here. Exit code 0 or 1."""

    examples: ClassVar = ("doctor",)
