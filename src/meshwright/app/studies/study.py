"""A study: a question of `plan` or `estimate` whose options have several values, and every combination of them."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.app.verbs import VERBS
from meshwright.fields.request import Request
from meshwright.formats.gpus import parse_gpus
from meshwright.library.changed_device import changed_device
from meshwright.library.devices import device
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.device import DeviceSpec

SOURCE = "the study"
WHOLE_IN_64_BITS = 2**63 - 1
Values = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyAxis:
    """One option or number with its values."""

    name: str
    """A field of the verb, or `NEXT.node.scaleup_gb_s`, a number of a device."""
    values: Values
    """Values as they are stated; numbers of options as they are read."""
    device: str = ""
    """Device whose number it is; empty for an option."""
    key: str = ""
    """Key of a device file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyQuestion:
    """One combination: what a verb is asked, on which devices."""

    number: int
    """Position in the study."""
    verb: str
    values: tuple[tuple[str, Any], ...]
    """Values by the name of the axis."""
    asked: tuple[tuple[str, Any], ...]
    """Fields of the verb, as they are stated."""
    numbers: tuple[tuple[str, str, Any], ...]
    """Device, key and value."""
    like: tuple[tuple[str, str], ...]
    """Devices of the study, and the device of the library that each is made of."""

    def request(self) -> Request:
        """What the verb is asked.

        Raises:
            InputError, UnsupportedError: the combination is not one.
        """
        asked = dict(self.asked)
        if self.like and "gpus" in asked:
            asked["cluster"] = self._cluster(str(asked.pop("gpus")))
        return VERBS[self.verb].request.read(asked)

    def _cluster(self, gpus: str) -> ClusterSpec:
        """The cluster of `512xnext`, its devices as the study states them."""
        own = {name: self._device(name, base) for name, base in self.like}

        def found(name: str) -> DeviceSpec:
            return own[name] if name in own else device(name)

        from meshwright.library.instances import is_instance

        return parse_gpus(gpus, found, is_node=lambda name: name not in own and is_instance(name))

    def _device(self, name: str, base: str) -> DeviceSpec:
        changes: dict[str, Any] = {}
        for owner, key, value in self.numbers:
            if owner == name:
                table, _, own = key.rpartition(".")
                (changes.setdefault(table, {}) if table else changes)[own] = value
        return changed_device(device(base), changes, name=name, source=SOURCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepStudy:
    """Every combination of the values of some axes."""

    verb: str
    """`plan`, or `estimate` where the study states plans."""
    axes: tuple[StudyAxis, ...]
    """Options in the order in which they are stated, then numbers of devices; the last changes quickest."""
    like: tuple[tuple[str, str], ...]
    used: tuple[tuple[str, frozenset[str]], ...] = ()
    """Devices that each text of `gpus` names; empty where no numbers of devices are stated."""

    @property
    def size(self) -> int:
        """Combinations: numbers of a device vary only where its cluster has it."""
        options = math.prod(len(axis.values) for axis in self.axes if not axis.device and axis.name != "gpus")
        clusters = dict(self.used) or dict.fromkeys(self._values_of("gpus"), frozenset[str]())
        numbers = [
            math.prod(len(axis.values) for axis in self.axes if axis.device in names) for names in clusters.values()
        ]
        return options * sum(numbers or [1])

    @property
    def varied(self) -> tuple[StudyAxis, ...]:
        """Axes with more than one value."""
        return tuple(axis for axis in self.axes if len(axis.values) > 1)

    def questions(self) -> Iterator[StudyQuestion]:
        """All of them, each once."""
        options, numbers = ([axis for axis in self.axes if bool(axis.device) is of] for of in (False, True))
        place = itertools.count()
        for chosen in itertools.product(*(axis.values for axis in options)):
            asked = dict(zip((axis.name for axis in options), chosen, strict=True))
            names = self._named(asked)
            # Numbers of a device that the cluster lacks have no value.
            for stated in itertools.product(*(axis.values if axis.device in names else (None,) for axis in numbers)):
                yield self.question(next(place), (*chosen, *stated))

    def question(self, number: int, values: Values) -> StudyQuestion:
        """The combination of some values.

        Args:
            number: its position.
            values: the values of each axis, options first; of idle devices they say nothing.
        """
        chosen = list(zip(self.axes, values, strict=True))
        asked = {axis.name: value for axis, value in chosen if not axis.device}
        names = self._named(asked)
        own = [(axis, value) for axis, value in chosen if not axis.device or axis.device in names]
        said = {axis.name: plain_value(value) for axis, value in own}
        return StudyQuestion(
            number=number,
            verb=self.verb,
            values=tuple((axis.name, said.get(axis.name)) for axis in self.axes),
            asked=tuple(asked.items()),
            numbers=tuple((axis.device, axis.key, value) for axis, value in own if axis.device),
            like=tuple((name, base) for name, base in self.like if name in names),
        )

    def _named(self, asked: Mapping[str, Any]) -> frozenset[str]:
        """Devices of the study that a combination's cluster has."""
        return dict(self.used).get(str(asked.get("gpus")), frozenset())

    def _values_of(self, name: str) -> Values:
        return next((axis.values for axis in self.axes if axis.name == name), ())

    def fingerprint(self, **how: Any) -> str:
        """A digest of what is asked, so that a file is only gone on with under the same study and version."""
        from meshwright import __version__

        axes = [[axis.name, [plain_value(value) for value in axis.values]] for axis in self.axes]
        data = {"verb": self.verb, "axes": axes, "like": self.like, "how": how, "version": __version__}
        return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()


def plain_value(value: Any) -> Any:
    """A value as a cell of a table: text, number or truth; lists and tables as JSON."""
    if isinstance(value, int) and abs(value) > WHOLE_IN_64_BITS:
        return float(value)
    if isinstance(value, (bool, int, float, str)):
        return value
    return os.fspath(value) if isinstance(value, os.PathLike) else json.dumps(value, sort_keys=True, default=str)
