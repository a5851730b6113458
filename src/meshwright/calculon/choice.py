"""What a search, a sweep or a what-if of the Calculon model is asked about: inputs read and checked together."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

from meshwright.calculon.axes import DEGREE_KEYS, PRESETS, SETTING_KEYS, Axes, Value
from meshwright.calculon.inputs import CHOICES, Application, System
from meshwright.calculon.reading import read_application, read_system
from meshwright.calculon.space import ExecutionSpace
from meshwright.errors import nearest
from meshwright.fields.check import InputCheck

Source = str | os.PathLike[str] | Mapping[str, Any]

MOST_PROCESSORS = 2**31 - 1
MOST_BATCH = 2**20
"""Every batch size up to it is looked at in the full space."""
MOST_BEST = 100_000
USUAL_DATATYPE = "float16"
SHORT_NAMES = {
    "tp": "tensor_par", "pp": "pipeline_par", "dp": "data_par", "mbs": "microbatch_size", "gbs": "batch_size",
    "vpp": "pipeline_interleaving", "dtype": "datatype", "recompute": "activation_recompute",
}  # fmt: skip
"""Other names of keys."""


@runtime_checkable
class StatedSpace(Protocol):
    """What a request says of a space; see `requests.calculon`."""

    @property
    def dtype(self) -> str | None:
        """Format of all executions; float16, or all in the full space, where none is given."""

    @property
    def space(self) -> str:
        """One of PRESETS."""

    @property
    def tp_overlap(self) -> bool:
        """Whether overlap of tensor-parallel traffic is an axis."""

    @property
    def dp_overlap(self) -> bool:
        """Whether overlap of data-parallel traffic is an axis."""

    @property
    def pin(self) -> tuple[str, ...]:
        """Keys with their values: `tensor_par=4,8`."""


@runtime_checkable
class DesignOptions(Protocol):
    """What a request says of one design."""

    @property
    def app(self) -> Any:
        """A library name, a path, the content of a file, or an application."""

    @property
    def system(self) -> Any:
        """A library name, a path, the content of a file, or a system."""

    @property
    def procs(self) -> int:
        """Processors."""

    @property
    def batch(self) -> int:
        """The largest batch."""

    @property
    def options(self) -> StatedSpace:
        """The space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceChoice:
    """Which space, for any system."""

    options: StatedSpace
    pins: tuple[tuple[str, tuple[Value, ...]], ...]

    def axes(self, system: System) -> Axes:
        """The axes on a system; float16 where no datatype is given and the system has it, or all in the full space."""
        dtype = self.options.dtype
        given: dict[str, Any] = {"tp_overlap": self.options.tp_overlap, "dp_overlap": self.options.dp_overlap}
        if self.options.space == "full":
            given["datatypes"] = (dtype,) if dtype else None
        else:
            given["datatype"] = dtype or usual_datatype(system)
        axes: Axes = PRESETS[self.options.space](system, **given)
        for key, values in self.pins:
            axes = axes.pin(key, values)
        return axes


def usual_datatype(system: System) -> str:
    """The datatype taken where none is given: float16, or the widest the system has."""
    known = datatypes_of(system)
    return USUAL_DATATYPE if USUAL_DATATYPE in known else known[-1]


def datatypes_of(system: System) -> tuple[str, ...]:
    """Datatypes that both engines of a system have."""
    return tuple(name for name in CHOICES["datatype"] if name in system.matrix and name in system.vector)


def read_apps(check: InputCheck, sources: Iterable[Source | Application]) -> list[Application]:
    """Applications, without those that cannot be read."""
    return [app for source in sources if (app := check.attempt(partial(read_application, source))) is not None]


def read_systems(check: InputCheck, sources: Iterable[Source | System]) -> list[System]:
    """Systems, without those that cannot be read."""
    return [system for source in sources if (system := check.attempt(partial(read_system, source))) is not None]


def check_inputs(
    apps: Iterable[Source | Application], systems: Iterable[Source | System], options: StatedSpace
) -> None:
    """Raise what is wrong with inputs and space, for callers that know already that something else is.

    Args:
        apps: applications: names, paths or content.
        systems: systems: names, paths or content.
        options: the space.

    Raises:
        InputError: anything but unknown names is wrong.
        UnsupportedError: only unknown names are.
    """
    check = InputCheck()
    read_apps(check, apps)
    choose_space(check, read_systems(check, systems), options)
    check.done()


def read_space(asked: DesignOptions, check: InputCheck) -> tuple[ExecutionSpace, SpaceChoice]:
    """The space of one design, and its choice for other systems.

    Args:
        asked: application, system, processors, batch and space.
        check: what is wrong with other inputs.

    Raises:
        InputError: malformed input, all problems together.
        UnsupportedError: an unknown name.
    """
    apps, systems = read_apps(check, [asked.app]), read_systems(check, [asked.system])
    check.whole("--procs", asked.procs, MOST_PROCESSORS)
    check.whole("--batch", asked.batch, MOST_BATCH)
    choice = choose_space(check, systems, asked.options)
    check.done()
    return ExecutionSpace(apps[0], systems[0], asked.procs, asked.batch, choice.axes(systems[0])), choice


def choose_space(check: InputCheck, systems: Iterable[System], options: StatedSpace) -> SpaceChoice:
    """The space that is asked for; problems are noted."""
    space, dtype = options.space, options.dtype
    held = list(systems)
    if space not in PRESETS:
        close = nearest(space, PRESETS)
        fix = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(PRESETS)}"
        check.problem(f"unknown space {space[:60]!r}", "no space has this name", fix, "--space")
    if dtype is not None and dtype not in CHOICES["datatype"]:
        close = nearest(dtype, CHOICES["datatype"])
        fix = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(CHOICES['datatype'])}"
        check.problem(f"unknown datatype {dtype[:60]!r}", "Calculon knows no such datatype", fix, "--dtype")
    for system in held:
        known = datatypes_of(system)
        name = system.name or "the system"
        if not known:
            why = "an execution needs matrix and vector engines of one datatype"
            check.problem(f"{name} has no datatype in both engines", why, "add one to both", "system")
        elif dtype in CHOICES["datatype"] and dtype not in known:
            fix = f"choose {' or '.join(known)}"
            check.problem(f"{name} has no {dtype}", "its matrix and vector engines need it", fix, "--dtype")
    pins = read_pins(check, options.pin, held)
    return SpaceChoice(options=options, pins=pins)


def read_pins(
    check: InputCheck, texts: Iterable[str], systems: list[System]
) -> tuple[tuple[str, tuple[Value, ...]], ...]:
    """`tensor_par=4,8` as key and values."""
    found: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        key, equals, words = text.partition("=")
        key = SHORT_NAMES.get(key.strip(), key.strip())
        if not equals or not words.strip():
            check.problem(
                f"--pin {text[:60]!r}", "a pin is KEY=VALUE[,VALUE]", "for example --pin tensor_par=8", "--pin"
            )
            continue
        if key not in (*SETTING_KEYS, *DEGREE_KEYS):
            close = nearest(key, [*SETTING_KEYS, *DEGREE_KEYS, *SHORT_NAMES])
            fix = f"did you mean {' or '.join(close)}?" if close else "use a key of Calculon's execution file"
            check.problem(f"--pin of unknown key {key[:60]!r}", "no execution parameter that is searched", fix, "--pin")
            continue
        values = [_pin_value(check, key, word.strip(), systems) for word in words.split(",")]
        if None not in values:
            found[key] = tuple(dict.fromkeys(value for value in values if value is not None))
    return tuple(found.items())


def _pin_value(check: InputCheck, key: str, word: str, systems: list[System]) -> Value | None:
    if key in CHOICES:
        known = CHOICES[key]
        if key == "datatype" and systems:
            known = tuple(name for name in known if all(name in datatypes_of(system) for system in systems))
        if word in known:
            return word
        close = nearest(word, known)
        fix = f"did you mean {' or '.join(close)}?" if close else f"known here: {', '.join(known)}"
        check.problem(f"--pin {key}={word[:60]}", f"{key} has no such value here", fix, "--pin")
        return None
    if key in SETTING_KEYS and not key.endswith("_net"):
        if word.lower() in ("true", "false"):
            return word.lower() == "true"
        check.problem(f"--pin {key}={word[:60]}", f"{key} is true or false", f"write {key}=true", "--pin")
        return None
    low = 0 if key.endswith("_net") else 1
    most = min((len(system.networks) for system in systems), default=1) - 1 if low == 0 else MOST_PROCESSORS
    if word.isdigit() and len(word) < 12 and low <= int(word) <= most:
        return int(word)
    why = f"{key} is a whole number from {low} to {most:,}"
    check.problem(f"--pin {key}={word[:60]}", why, f"write {key}={max(low, min(8, most))}", "--pin")
    return None


def inputs_of(space: ExecutionSpace) -> dict[str, Any]:
    """What was asked, as data."""
    axes = space.axes
    return {
        "app": space.app.name,
        "system": space.system.name,
        "num_procs": space.num_procs,
        "batch": space.batch,
        "space": {
            "name": axes.name,
            "constraints": list(axes.constraints()),
            "axes": {axis.key: list(axis.values) for axis in axes.settings},
        },
    }
