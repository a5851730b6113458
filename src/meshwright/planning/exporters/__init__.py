"""Plans as files of the frameworks that run them: a new target is a file of this folder and a line here."""

from meshwright.planning.exporters.base import Exporter, TargetFiles
from meshwright.planning.exporters.megatron import MEGATRON
from meshwright.planning.exporters.torch_csv import TORCH_CSV

EXPORTERS: dict[str, Exporter] = {exporter.name: exporter for exporter in (MEGATRON, TORCH_CSV)}

__all__ = ["EXPORTERS", "Exporter", "TargetFiles"]
