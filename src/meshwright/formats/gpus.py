"""Clusters from the one-line form of `--gpus`.

The one-line form is a comma list of `[NODESx]COUNTxDEVICE`: `64xH100` (nodes of the device's usual size), `8x8xH100`
(8 nodes of 8), `32xA100-80,64xH100`; `1xRTX4090+1xRTX3090` are unlike devices of one host.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from meshwright.errors import MeshwrightError
from meshwright.formats.cluster import (
    MAX_GROUPS,
    UNKNOWN_NODE,
    DeviceLookup,
    Refusals,
    default_links,
    group_names,
    host_links,
    node_group,
)
from meshwright.specs.cluster import MAX_DEVICES, ClusterSpec
from meshwright.specs.device import DeviceSpec

_MAX_TEXT = 10_000
_NUMBER = r"[+-]?[0-9][0-9_.]*"
_ITEM = re.compile(rf"(?:({_NUMBER})\s*[xX×*]\s*)?({_NUMBER})\s*[xX×*]\s*(\S.*)", re.DOTALL)
_NUMBERED = re.compile(rf"(?:({_NUMBER})\s*[xX×*]\s*)?({_NUMBER})\s*[xX×*]\s*([0-9]+[xX]\S*)")
"""Devices that are called by a number with an x behind it: `2x7900XTX`."""
_DEVICE_FIRST = re.compile(r"(?P<device>[^\s:].{0,60}?)\s*[xX×*:=]\s*(?P<count>[0-9]{1,7})")
_COUNT_FIRST = re.compile(r"(?P<count>[0-9]{1,7})(?:\s*[-_:]|\s)?\s*(?P<device>[A-Za-z].{0,60})")
_IN_HOST = re.compile(r"\+(?=\s*[0-9]+\s*[xX×*])")
_OUTER_COMMA = re.compile(r",(?![^()]*\))")


def _no_node(name: str) -> bool:
    return False


def parse_gpus(text: str, lookup: DeviceLookup, is_node: Callable[[str], bool] = _no_node) -> ClusterSpec:
    """The cluster of the one-line form.

    Args:
        text: comma list of `[NODESx]COUNTxDEVICE`; `COUNTxDEVICE+COUNTxDEVICE` for unlike devices of one host.
        lookup: finds a device by name.
        is_node: whether a name stands for a whole node, whose devices `lookup` finds: `4xp5.48xlarge` are 32 devices.

    Returns:
        one group per entry; entries of one device get numbered names. Numbers that were not given come from the
        device's usual node; `assumptions` lists them.

    Raises:
        InputError: the text is not of this form, or its numbers cannot be; all problems together.
        UnsupportedError: unknown devices and nothing else wrong.
    """
    wrong, given = Refusals("MW210"), cast(object, text)
    if not isinstance(given, str):
        wrong.add(f"gpus is {given!r:.60}", "it is a text that says how many of which device")
        wrong.done()
    if not text.strip():
        wrong.add("--gpus is empty", "it says how many of which device")
        wrong.done()
    items = [item.strip() for item in _OUTER_COMMA.split(text[:_MAX_TEXT])]
    if len(text) > _MAX_TEXT or len(items) > MAX_GROUPS:
        wrong.add(f"--gpus lists {len(items)} groups or more", f"at most {MAX_GROUPS} groups can be planned")
        wrong.done()
    reading = _Reading(lookup, is_node, wrong)
    found = [_parse_host(item, reading) for item in items]
    shapes = [shape for own in found for shape in own]
    total = sum(nodes * per_node for _, nodes, per_node in shapes)
    if total > MAX_DEVICES:
        wrong.add(
            f"--gpus asks for {_digits(total)} devices",
            f"at most {MAX_DEVICES:,} devices can be planned",
            "plan one replica and scale its data-parallel degree",
        )
    if wrong:
        wrong.done()
    names = group_names([device.name for device, _, _ in shapes])
    groups = [
        node_group(name=name, device=device, nodes=nodes, devices_per_node=per_node)
        for name, (device, nodes, per_node) in zip(names, shapes, strict=True)
    ]
    upto = itertools.pairwise(itertools.accumulate((len(own) for own in found), initial=0))
    together = [groups[low:high] for item, (low, high) in zip(items, upto, strict=True) if _IN_HOST.search(item)]
    inside = {frozenset(link.between): link for hosted in together for link in host_links(hosted)}
    return ClusterSpec(
        name=",".join(items),
        groups=tuple(groups),
        links=tuple(default_links(groups, None, inside)),
        notes=tuple(_uneven(shapes)),
    )


@dataclass(frozen=True, slots=True)
class _Reading:
    """What entries are read with."""

    lookup: DeviceLookup
    is_node: Callable[[str], bool]
    wrong: Refusals


def _parse_host(item: str, reading: _Reading) -> list[tuple[DeviceSpec, int, int]]:
    """The shapes of an entry; each part of one that joins devices by `+` is one node's."""
    parts = [part.strip() for part in _IN_HOST.split(item)]
    if len(parts) == 1:
        return _parse_item(item, reading)
    shapes = []
    for part in parts:
        own = _parse_item(part, reading)
        if len(own) > 1 or (own and own[0][1] > 1):
            reading.wrong.add(f"--gpus entry {part[:60]!r}: more than one node", "a + joins the devices of one host")
        shapes += own
    return shapes


def _meant(item: str, lookup: DeviceLookup) -> Iterator[str]:
    """How an entry in another form is written: `H100x64`, `H100:64`, `64 H100`, `64H100`, `H100` or `64`."""
    found = _DEVICE_FIRST.fullmatch(item) or _COUNT_FIRST.fullmatch(item)
    if _is_device(item, lookup):  # RTX4090 is no 4,090 devices
        yield f"say how many: 1x{item}, for example"
    elif item.isdecimal():
        yield f"name the device: {item[:9]}xH100, for example; `meshwright gpus list` names all"
    elif found and _is_device(found["device"], lookup):
        yield f"did you mean {found['count']}x{found['device']}?"


def _is_device(name: str, lookup: DeviceLookup) -> bool:
    try:
        lookup(name)
    except MeshwrightError:
        return False
    return True


def _parse_item(item: str, reading: _Reading) -> list[tuple[DeviceSpec, int, int]]:
    """Device, nodes and devices of a node of an entry: one group, or full nodes and one that is not."""
    wrong = reading.wrong
    shown = item if len(item) <= 60 else f"{item[:57]}..."
    numbered = _NUMBERED.fullmatch(item)
    own = numbered is not None and _is_device(numbered[3], reading.lookup)
    match = numbered if own else _ITEM.fullmatch(item)
    if match is None or (not own and re.match(r"[0-9]+\s*[xX×*]", match[3])):
        why = "each entry is [NODESx]COUNTxDEVICE" if item else "an entry is empty"
        wrong.add(f"--gpus entry {shown!r} is not understood", why, *_meant(item, reading.lookup))
        return []
    nodes_text, count_text, device_name = match.groups()
    nodes = _whole(nodes_text, "nodes", shown, wrong) if nodes_text is not None else None
    count = _whole(count_text, "devices", shown, wrong)
    worded = numbered is not None and re.match(r"[0-9]{3,}", numbered[3]) is not None
    if numbered and worded and not own and not _is_device(device_name.strip(), reading.lookup):
        device_name = numbered[3]  # neither reading is a device: the whole word is what was meant
    device = wrong.device(device_name.strip(), reading.lookup)
    if device is None or count is None or (nodes is None and nodes_text is not None):
        return []
    usual = (device.node or UNKNOWN_NODE).devices_per_node
    if reading.is_node(device_name):
        if nodes is not None:
            say = f"{nodes * count}x{device_name.strip()[:40]}"
            wrong.add(f"--gpus entry {shown!r}: nodes of nodes", "a machine type is a whole node", f"{say} says so")
        return [(device, count, usual)]
    if nodes is not None:
        return [(device, nodes, count)]
    full, rest = divmod(count, usual)
    return [shape for shape in ((device, full, usual), (device, 1, rest)) if shape[1] and shape[2]]


def _uneven(shapes: Sequence[tuple[DeviceSpec, int, int]]) -> Iterator[str]:
    """Entries that were read as full nodes and one that is not."""
    for (device, full, usual), (other, last, rest) in itertools.pairwise(shapes):
        if device is other and last == 1 and rest < usual == (device.node or UNKNOWN_NODE).devices_per_node:
            said = f"{full} node{'s' if full > 1 else ''} of {usual} and one of {rest}"
            total = full * usual + rest
            flat = f"{total}x1x{device.name} for one shape of plan over all, priced by the fabric alone"
            yield f"{total} {device.name} are {said}; say NODESxCOUNTx{device.name} for equal nodes, or {flat}"


def _whole(text: str, noun: str, item: str, wrong: Refusals) -> int | None:
    digits = text.replace("_", "")
    if not re.fullmatch(r"\+?[0-9]+", digits):
        wrong.add(f"--gpus entry {item!r}: {text[:20]} {noun}", f"the number of {noun} must be a whole number above 0")
        return None
    significant_digits = digits.lstrip("+0")
    if not significant_digits:
        wrong.add(f"--gpus entry {item!r}: 0 {noun}", f"the number of {noun} must be a whole number above 0")
        return None
    if len(significant_digits) > 9 or int(significant_digits) > MAX_DEVICES:
        wrong.add(
            f"--gpus entry {item!r}: too many {noun}",
            f"at most {MAX_DEVICES:,} devices can be planned",
            "plan one replica and scale its data-parallel degree",
        )
        return None
    return int(significant_digits)


def _digits(number: int) -> str:
    return f"{number:,}" if number < 10**18 else "too many"
