"""What a search keeps away from the devices: as people say it, and in which order it is tried."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.errors import InputError, nearest
from meshwright.estimate.hardware import HOST_UPDATE_BYTES_PER_S
from meshwright.estimate.result import StepPrice
from meshwright.formats.cluster import Assumption
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.row import OFFLOAD_LETTERS, offload_problems, offload_tokens
from meshwright.units import GIGA, significant

AUTO = "auto"
IN_MEMORY = ("o", "og", "aog", "wog", "waog")
"""What `auto` tries in host memory, from what costs the least time to what frees the most."""
ON_DISKS = ("og-nvme", "aog-nvme", "wog-nvme", "waog-nvme")
_STATES = {"optimizer": "og", "activations": "a", "weights": "w"}
"""States as people name them. Gradients leave as they come with an optimizer on the host; `o` alone keeps them."""
_WORDS = {"nvme": "nvme", "delayed": "dpu"}


def read_offload(text: str) -> tuple[str, ...]:
    """Values of the axis `offload`: `none`, `auto`, or what is moved, `optimizer,activations,nvme` or `aog-nvme`.

    Args:
        text: the text as given.

    Returns:
        One value, or all that are tried.

    Raises:
        InputError: an unknown word, or words that do not go together.
    """
    parts = [part.strip().lower() for part in text.split(",") if part.strip()]
    if parts == [AUTO]:
        return ("none", *IN_MEMORY, *ON_DISKS)
    if len(parts) == 1 and (token := parts[0].removeprefix("off-")) in ("none", *offload_tokens()):
        return (token,)
    known = (*_STATES, *_WORDS)
    unknown = [part for part in parts if part not in known]
    if unknown or not parts:
        word = unknown[0] if unknown else text
        close = nearest(word[:40], [*known, "none", AUTO])
        fix = f"did you mean {' or '.join(close)}?" if close else f"say {', '.join(('none', AUTO, *known))}"
        why = "optimizer, activations and weights can be offloaded; nvme keeps them on disks"
        raise InputError(what=f"offload {word[:40]!r}", why=why, fix=fix, field="offload", code="MW205")
    moved = {letter for part in parts if part in _STATES for letter in _STATES[part]}
    letters = "".join(letter for letter in OFFLOAD_LETTERS if letter in moved)
    token = "-".join((letters, *(_WORDS[word] for word in _WORDS if word in parts)))
    problems = offload_problems(token)
    if problems and not letters:
        why = "it says where or when, but not what is offloaded"
        fix = f"name what is offloaded: --offload {','.join(['optimizer', *parts])}"
        raise InputError(what=f"--offload {text}", why=why, fix=fix, field="offload", code="MW205")
    if problems:
        raise InputError(problems, code="MW205")
    return (token,)


def spelled(token: str) -> str:
    """What to say for a value of the axis: `--offload optimizer,activations`."""
    letters, *words = token.split("-")
    if letters.replace("w", "").replace("a", "") == "o":
        return f"--offload {token}"
    names = [name for name, own in _STATES.items() if own[0] in letters]
    return f"--offload {','.join((*names, *(name for name, word in _WORDS.items() if word in words)))}"


def offload_text(token: str) -> str:
    """What is kept where, in words: `optimizer, gradients and weights in host memory`."""
    letters, *words = token.split("-")
    names = [name for letter, name in OFFLOAD_LETTERS.items() if letter in letters]
    on_disks = [name for name in names if "nvme" in words and name in ("weights", "optimizer")]
    in_memory = [name for name in names if name not in on_disks]
    parts = [f"{_listed(in_memory)} in host memory"] if in_memory else []
    parts += [f"{_listed(on_disks)} on NVMe"] if on_disks else []
    return ", ".join(parts) + (", updated one step behind" if "dpu" in words else "")


def host_assumptions(cluster: ClusterSpec, estimate: StepPrice) -> Iterator[Assumption]:
    """What a plan takes of its hosts that nobody stated: how fast copies are, and the update.

    Args:
        cluster: its groups and their hosts.
        estimate: the estimate of the plan.
    """
    away = {stage.group for stage in estimate.stages if stage.host_bytes or stage.disk_bytes}
    for group in cluster.groups:
        if group.name not in away or group.device.unified_memory:
            continue
        if group.host.link_bytes_per_s is None:
            rate = significant(group.device.host_bandwidth_bytes_per_s / GIGA)
            basis = group.device.basis_of("host_bandwidth_bytes_per_s").basis
            value = f"{rate} GB/s per direction between device and host (--pcie)"
            yield Assumption(name=f"{group.name} host link", value=value, basis=basis)
        on_disks = any(stage.disk_bytes for stage in estimate.stages)
        if on_disks and group.host.disk_write_bytes_per_s is None:
            value = "written as fast as read (nvme_write_gb_s in a cluster file)"
            yield Assumption(name=f"{group.name} NVMe", value=value, basis="assumed")
        if group.host.memory_bytes_per_s is None:
            rate = significant(HOST_UPDATE_BYTES_PER_S / GIGA)
            value = f"the optimizer moves {rate} GB/s of a host's memory (ram_gb_s in a cluster file)"
            yield Assumption(name=f"{group.name} host update", value=value, basis="assumed")


def _listed(names: list[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
