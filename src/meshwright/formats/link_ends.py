"""What the two ends of a link in a cluster file name: a group, or the groups of a zone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from meshwright.errors import MeshwrightError, nearest
from meshwright.formats.cluster import DeviceLookup, Refusals, group_names
from meshwright.formats.cluster_tables import GroupTable


@dataclass(frozen=True, slots=True)
class LinkEnds:
    """All that an end may name."""

    names: Mapping[str, tuple[str, ...]]
    zones: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, groups: Iterable[tuple[str, str | None]]) -> Self:
        """The ends of links between groups, each with its name and zone."""
        names: dict[str, tuple[str, ...]] = {}
        zones: dict[str, tuple[str, ...]] = {}
        for name, zone in groups:
            names[name] = (name,)
            if zone is not None:
                zones[zone] = (*zones.get(zone, ()), name)
        return cls(names, zones)

    def named(self, end: str, where: str, wrong: Refusals) -> tuple[str, tuple[str, ...]] | None:
        """Whether an end is a group or a zone, and the groups it stands for.

        Args:
            end: the end as the file says it.
            where: the link.
            wrong: an end that is neither, or both, goes here.
        """
        matches = [("group", self.names[end])] if end in self.names else []
        matches += [("zone", self.zones[end])] if end in self.zones else []
        for kind, known in (("group", self.names), ("zone", self.zones)):
            if not matches and end.startswith(f"{kind}:") and end.removeprefix(f"{kind}:") in known:
                matches = [(kind, known[end.removeprefix(f"{kind}:")])]
        if len(matches) == 1 or (matches and matches[0][1] == matches[1][1]):
            return matches[0]  # a zone of one group that has its name is that group
        if matches:
            why, fix = f"{end!r} is a group and a zone", f'write "group:{end}" or "zone:{end}"'
        else:
            close = nearest(end[:80], [*self.names, *self.zones])
            why = f"groups: {', '.join(self.names)}; zones: {', '.join(self.zones) or 'none'}"
            fix = f"did you mean {' or '.join(close)}?" if close else "name a group or a zone"
        wrong.add(f"{where}.between names {end[:80]!r}", why, fix, name=f"{where}.between")
        return None


def stray_ends(data: Mapping[str, object], lookup: DeviceLookup, wrong: Refusals) -> None:
    """Ends of links that name nothing, in a table of which something else is wrong.

    Args:
        data: the table of a cluster file, whatever its values.
        lookup: finds a device by name.
        wrong: the list to which they are added.
    """
    groups = [_named(group, lookup) for group in _tables(data.get("group"))]
    known = [one for one in groups if one is not None]
    if not known or len(known) < len(groups):
        return  # an end may name a group whose own name nobody knows
    names = group_names([name for name, _ in known])
    stated = [(name, zone) for name, (_, zone) in zip(names, known, strict=True)]
    ends = LinkEnds.of(stated)
    for number, link in enumerate(_tables(data.get("link"))):
        between = link.get("between") if isinstance(link, Mapping) else None
        if isinstance(between, list | tuple) and len(between) == 2:
            for end in between:
                if isinstance(end, str):
                    ends.named(end, f"link[{number}]", wrong)


def _tables(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []


def _named(group: object, lookup: DeviceLookup) -> tuple[str, str | None] | None:
    """Name and zone of a group; None where its name cannot be known, or a mistyped key may hold it."""
    if not isinstance(group, Mapping) or not set(group) <= set(GroupTable.model_fields):
        return None
    name, device, zone = (group.get(key) for key in ("name", "device", "zone"))
    if not isinstance(name, str):
        if not isinstance(device, str):
            return None
        try:
            name = lookup(device).name
        except MeshwrightError:
            name = device  # an unknown device is named by its own problem
    return name, zone if isinstance(zone, str) else None
