"""Descriptions of clusters that users have, recognised by what is in them.

A new kind is a file with a `Format`, and a line in `FORMATS`.
"""

from __future__ import annotations

from pathlib import Path

from meshwright.errors import InputError
from meshwright.formats.cluster import DeviceLookup
from meshwright.formats.cluster_file import cluster_from_table
from meshwright.formats.clusters import kubernetes, matrix, nvidia_smi, nvidia_topo, slurm
from meshwright.formats.clusters.base import ClusterText, Description, Format
from meshwright.formats.files import LANGUAGES, has_no_name, language_of, read_table, read_text
from meshwright.specs.cluster import ClusterSpec

ALIKE = 0.1
"""How far apart speeds may be that count as one: repeated measurements of one link differ by less."""
FORMATS: tuple[Format, ...] = (
    kubernetes.FORMAT,
    nvidia_topo.FORMAT,
    nvidia_smi.FORMAT,
    slurm.SCONTROL,
    slurm.SINFO,
    matrix.FORMAT,
)
CLUSTER_FILE = "cluster file"


def read_description(path: str | Path, lookup: DeviceLookup, tolerance: float = ALIKE) -> Description:
    """A file as the keys of a cluster file, whatever its kind.

    Args:
        path: a cluster file or one of `FORMATS`.
        lookup: finds a device by name.
        tolerance: how far apart measured speeds may be that count as one.

    Raises:
        InputError: the file cannot be used; all problems together.
        UnsupportedError: unknown devices and nothing else wrong, or YAML without a reader.
    """
    text = read_text(path, CLUSTER_FILE)
    for format_ in FORMATS:
        if format_.holds(text):
            return format_.read(ClusterText(text=text, lookup=lookup, tolerance=tolerance))
    try:
        return Description(kind=CLUSTER_FILE, table=read_table(path, CLUSTER_FILE))
    except InputError as error:
        if Path(path).suffix.lower() in LANGUAGES or language_of(text) != "TOML":
            raise
        known = ", ".join(format_.name for format_ in FORMATS)
        what = f"{str(path)!r} is no description of a cluster that is known"
        why = f"it is neither TOML, JSON or YAML nor one of: {known}"
        remedy = "write the keys as TOML" if has_no_name(path) else "name the file with its ending"
        fix = f"{remedy}, or see the page on clusters"
        raise InputError(what=what, why=why, fix=fix, code=error.code) from None


def read_cluster(path: str | Path, lookup: DeviceLookup, tolerance: float = ALIKE) -> ClusterSpec:
    """The cluster of a file, whatever its kind; arguments and errors as `read_description`."""
    description = read_description(path, lookup, tolerance)
    name = "cluster" if has_no_name(path) else Path(path).stem
    return cluster_from_table(description.table, lookup, name=name, notes=description.notes)


__all__ = ["ALIKE", "CLUSTER_FILE", "FORMATS", "Description", "read_cluster", "read_description"]
