"""The library as a user sees it: models and devices listed, shown, added."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.app.answer import Answer
from meshwright.formats.device_lint import LintFinding
from meshwright.library import devices as device_library
from meshwright.library import models as model_library
from meshwright.records import fields_of
from meshwright.specs.device import DeviceSpec, Provenance
from meshwright.specs.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelList(Answer):
    """The models of the library, by name."""

    rows: tuple[dict[str, Any], ...]
    """One a model; with `error` instead of a shape where a file of the user's own does not read."""

    def __repr__(self) -> str:
        return f"ModelList({len(self.rows)} models)"

    def data(self) -> dict[str, object]:
        """As data."""
        return {"schema": "meshwright.models/1", "models": list(self.rows)}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelCard(Answer):
    """One model with all that is known of it."""

    model: ModelSpec
    aliases: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"ModelCard({self.model.name}, {self.model.parameters:,} parameters)"

    def data(self) -> dict[str, object]:
        """As data."""
        model = self.model
        return {
            "schema": "meshwright.model/1",
            **model.describe(),
            "mtp_parameters": model.mtp_parameters,
            "embedding_parameters": model.embedding_parameters,
            "head_parameters": model.head_parameters,
            "tied_embeddings": model.tied_embeddings,
            "layer_kinds": [
                {"count": count, **layer.describe(model.width(layer))} for layer, count in model.kind_counts().items()
            ],
            "aliases": list(self.aliases),
            "source": model.source,
            "notes": list(model.notes),
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelAdded(Answer):
    """A model put into the user's library."""

    card: ModelCard
    path: Path

    def data(self) -> dict[str, object]:
        """As data."""
        return {"schema": "meshwright.model-added/1", "path": str(self.path), "model": self.card.model.describe()}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DeviceList(Answer):
    """The accelerators of the library."""

    devices: tuple[DeviceSpec, ...]

    def __repr__(self) -> str:
        return f"DeviceList({len(self.devices)} devices)"

    def data(self) -> dict[str, object]:
        """As data."""
        return {"schema": "meshwright.gpus/1", "gpus": [device_summary(device) for device in self.devices]}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DeviceCard(Answer):
    """One accelerator with the source and basis of each number."""

    device: DeviceSpec

    def __repr__(self) -> str:
        return f"DeviceCard({self.device.name})"

    def data(self) -> dict[str, object]:
        """As data."""
        device, node, efficiency = self.device, self.device.node, self.device.efficiency
        return {
            "schema": "meshwright.gpu/1",
            **device_summary(device),
            "efficiency": fields_of(efficiency),
            "node": None if node is None else fields_of(node, "provenance") | {"provenance": _sources(node.provenance)},
            "provenance": _sources(device.provenance),
            "notes": device.notes,
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DeviceAdded(Answer):
    """A device put into the user's library, and what the linter says of it."""

    device: DeviceSpec
    path: Path
    findings: tuple[LintFinding, ...]

    def data(self) -> dict[str, object]:
        """As data."""
        findings = [fields_of(finding) for finding in self.findings]
        gpu = device_summary(self.device)
        return {"schema": "meshwright.gpu-added/1", "path": str(self.path), "findings": findings, "gpu": gpu}


def list_models() -> ModelList:
    """All models that have a name."""
    return ModelList(rows=tuple(model_library.library_models()))


def show_model(model: str) -> ModelCard:
    """One model: a name, an alias, a config.json, a folder with one, or `-`.

    Raises:
        UnsupportedError: an unknown name or family.
        InputError: a file that is not the config of a model.
    """
    spec = model_library.resolve(model)
    in_library = spec.name in model_library.names() and model_library.spec(spec.name) == spec
    return ModelCard(model=spec, aliases=tuple(model_library.model_aliases(spec.name)) if in_library else ())


def add_model(
    config: str | Path, library: str | Path | None = None, *, name: str | None = None, force: bool = False
) -> ModelAdded:
    """Check a config.json and put it into the library directory.

    Args:
        config: a config.json or a folder with one.
        library: the directory; without it the one MESHWRIGHT_LIBRARY names.
        name: how the model will be called; as its file or folder by default.
        force: replace the user's own model of this name.

    Raises:
        InputError: no directory is named or writable, the name is taken, or the file is not the config of a model.
        UnsupportedError: an unknown family.
    """
    path = model_library.add_model_file(config, library, name=name, replace=force)
    return ModelAdded(card=ModelCard(model=model_library.resolve(str(path))), path=path)


def list_gpus() -> DeviceList:
    """All accelerators that have a name."""
    return DeviceList(devices=device_library.devices())


def show_gpu(name: str) -> DeviceCard:
    """One accelerator by name or alias.

    Raises:
        UnsupportedError: an unknown name.
        InputError: a user's device file of this name that cannot be read.
    """
    return DeviceCard(device=device_library.device(name))


def add_gpu(file: str | Path, library: str | Path | None = None, *, force: bool = False) -> DeviceAdded:
    """Check a device file and put it into the library directory.

    Args:
        file: TOML or JSON, about eight numbers from a data sheet.
        library: the directory; without it the one MESHWRIGHT_LIBRARY names.
        force: add it in spite of the linter's errors, and replace the user's own device of this name.

    Raises:
        InputError: the file cannot be used, its numbers cannot be right, or no directory is named or writable.
        UnsupportedError: an unknown generation.
    """
    added = device_library.add_device(file, library, force=force)
    return DeviceAdded(device=added.device, path=added.path, findings=added.findings)


def device_summary(device: DeviceSpec) -> dict[str, object]:
    """The numbers of a device without their sources.

    Args:
        device: the device.
    """
    return {
        "name": device.name,
        "vendor": device.vendor,
        "year": device.year,
        "aliases": list(device.aliases),
        "peak_flop_per_s": dict(device.peak_flop_per_s),
        "memory_bytes": device.memory_bytes,
        "memory_bandwidth_bytes_per_s": device.memory_bandwidth_bytes_per_s,
        "host_bandwidth_bytes_per_s": device.host_bandwidth_bytes_per_s,
        "units": device.units,
        "devices_per_node": device.node.devices_per_node if device.node else None,
        "power_w": device.power_w,
        "price_per_device_hour": device.price_per_hour,
    }


def _sources(provenance: tuple[tuple[str, Provenance], ...]) -> dict[str, dict[str, Any]]:
    return {name: fields_of(source) for name, source in provenance}
