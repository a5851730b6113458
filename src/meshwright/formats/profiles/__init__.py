"""Folders of measured layer profiles: three CSV files, or those of Sailor and Metis.

read_profiles   a folder -> times and sizes of each layer, bandwidth of each link
"""

from __future__ import annotations

from pathlib import Path

from meshwright.errors import InputError, Problem
from meshwright.formats.profiles.checking import model_profile
from meshwright.formats.profiles.columns import (
    LINKS,
    SIZES,
    TIMES,
    group_rows,
    links_of,
    raise_all,
    read_columns,
)
from meshwright.formats.profiles.metis import has_metis_files, read_metis
from meshwright.formats.profiles.profile_set import (
    End,
    LayerSizes,
    LayerTimes,
    LinkFit,
    ModelProfile,
    Point,
    ProfileSet,
    Route,
)
from meshwright.formats.profiles.sailor import Sizes, Times, has_sailor_files, read_sailor

__all__ = [
    "End",
    "LayerSizes",
    "LayerTimes",
    "LinkFit",
    "ModelProfile",
    "Point",
    "ProfileSet",
    "Route",
    "read_profiles",
]

_FILES = {
    "times": ("layer_times.csv", "layer_times_full.csv"),
    "sizes": ("layer_memory.csv",),
    "links": ("network.csv", "network_bandwidth_fits.csv"),
}


def read_profiles(folder: str | Path, *, interpolate: bool = True) -> ProfileSet:
    """The profiles of a folder.

    Args:
        folder: holds `layer_times.csv`, `layer_memory.csv` and `network.csv`, or files of Sailor or Metis at any
            depth.
        interpolate: fill micro-batches missing between two measured ones, marked; else they are refused.

    Raises:
        InputError: the folder or any file in it cannot be used; all problems together.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError(
            what=f"profiles {str(folder)!r} are no folder", why="--profiles names a folder", fix=_WANTED, code="MW260"
        )
    faults: list[Problem] = []
    found = {
        kind: next((root / name for name in names if (root / name).is_file()), None) for kind, names in _FILES.items()
    }
    if not any(found.values()) and has_sailor_files(root):
        times, sizes, links = read_sailor(root, faults)
    elif not any(found.values()) and has_metis_files(root):
        times, sizes, links = read_metis(root, faults)
    else:
        for kind, path in found.items():
            if path is None:
                faults.append(
                    Problem(
                        what=f"{str(folder)!r} has no {_FILES[kind][0]}", why="profiles are three files", fix=_WANTED
                    )
                )
        raise_all(faults)
        times, sizes, links = _read_csv(found["times"] or root, found["sizes"] or root, found["links"] or root, faults)
    raise_all(faults)
    models = {
        name: model_profile(name, points, sizes.get(name, {}), interpolate=interpolate, faults=faults)
        for name, points in sorted(times.items())
    }
    raise_all(faults)
    return ProfileSet(source=str(folder), models=models, links=links)


_WANTED = (
    "a folder with layer_times.csv, layer_memory.csv and network.csv, one of Sailor's with llm_info.json, or one of "
    "Metis' with DeviceType.<TYPE>_tp<t>_bs<b>.json and clusterfile.json"
)


def _read_csv(
    times_file: Path, sizes_file: Path, links_file: Path, faults: list[Problem]
) -> tuple[Times, Sizes, dict[Route, LinkFit]]:
    times: Times = {}
    for (model, device, tp, micro_batch), layers in group_rows(read_columns(times_file, TIMES, faults), 4).items():
        times.setdefault(str(model), {})[Point(str(device), int(tp), int(micro_batch))] = layers
    sizes: Sizes = {}
    for (model, tp), layers in group_rows(read_columns(sizes_file, SIZES, faults), 2).items():
        sizes.setdefault(str(model), {})[int(tp)] = layers
    return times, sizes, links_of(read_columns(links_file, LINKS, faults), faults)
