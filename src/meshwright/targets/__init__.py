"""Frameworks that run plans: what each can express, its files written and read back.

A new target is a folder here with a `Target`, and one line in `TARGETS`; its folder is read when it is asked for. A
trainer whose files are read and not written is a file in `trainers`, and one line in `TRAINERS`.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.catalogue import Catalogue
from meshwright.errors import UnsupportedError, nearest, unknown_name
from meshwright.targets.contract import Target, TargetFiles

__all__ = [
    "FINE_TUNING",
    "TARGETS",
    "TRAINERS",
    "Target",
    "TargetFiles",
    "reader_named",
    "readers",
    "target_named",
    "target_of_file",
]


class TargetCatalogue(Catalogue[Target]):
    """Targets by name, and by other names that people use for them."""

    def __init__(self, *folders: str, within: str = "", others: Mapping[str, str]) -> None:
        """Read nothing yet.

        Args:
            folders: the folders of this package, or files; the target's name with `_` for `-`.
            within: the folder of this package that they are in, and a dot.
            others: further names that people use, each with the target's own.
        """
        super().__init__(__name__, {folder.replace("_", "-"): f"{within}{folder}:TARGET" for folder in folders})
        self._others = others

    def canonical(self, name: str) -> str:
        """The target's own name for one that people use; the same text where it names none."""
        plain = "-".join(name.strip().lower().replace("_", "-").split())
        found = self._others.get(plain, plain)
        return found if found in self else name

    def names(self) -> tuple[str, ...]:
        """All names, the targets' own first."""
        return (*self, *self._others)


TARGETS = TargetCatalogue(
    "megatron",
    "torch_csv",
    "deepspeed",
    "megatron_deepspeed",
    "accelerate",
    "llamafactory",
    "axolotl",
    "bridge",
    "torchtitan",
    "automodel",
    "galvatron",
    "maxtext",
    "alpa",
    "run",
    others={
        "megatron-lm": "megatron",
        "megatron-core": "megatron",
        "mcore": "megatron",
        "megatron-bridge": "bridge",
        "nemo-automodel": "automodel",
        "torch.distributed.pipelining": "torch-csv",
        "llama-factory": "llamafactory",
        "hugging-face-accelerate": "accelerate",
        "hf-accelerate": "accelerate",
        "huggingface": "accelerate",
        "transformers": "accelerate",
        "trl": "accelerate",
        "titan": "torchtitan",
        "meshwright": "run",
    },
)
FINE_TUNING = ("torchtitan", "bridge", "automodel", "accelerate", "axolotl", "llamafactory", "deepspeed")
"""Targets that train adapters on frozen weights; a test holds the list against what each accepts."""
TRAINERS = TargetCatalogue(
    "torchtune",
    "litgpt",
    "nanotron",
    "neox",
    "foundry",
    "levanter",
    "xtuner",
    "swift",
    "openrlhf",
    "verl",
    "olmo",
    "olmo_core",
    within="trainers.",
    others={
        "lit-gpt": "litgpt",
        "gpt-neox": "neox",
        "llm-foundry": "foundry",
        "ms-swift": "swift",
    },
)
"""Read, not written."""
_MEANT = {
    "nemo": ("bridge", "automodel"),
    "fsdp": ("torchtitan", "accelerate", "automodel"),
    "fsdp2": ("torchtitan", "accelerate", "automodel"),
    "pytorch": ("torchtitan", "accelerate", "torch-csv"),
    "jax": ("maxtext", "run"),
    "torchtune": ("torchtitan", "axolotl"),
    "litgpt": ("accelerate",),
    "nanotron": ("megatron",),
    "neox": ("megatron-deepspeed", "deepspeed"),
    "foundry": ("accelerate",),
    "levanter": ("maxtext",),
    "xtuner": ("deepspeed",),
    "swift": ("deepspeed", "bridge"),
    "openrlhf": ("deepspeed",),
    "verl": ("accelerate", "megatron"),
    "olmo": ("accelerate",),
    "olmo-core": ("torchtitan",),
}
"""Targets nearest to a name that is none: of several trainers, or of one whose files are only read."""


def target_named(name: str) -> Target:
    """The target of a name.

    Raises:
        UnsupportedError: for one nobody taught us.
    """
    found = TARGETS.canonical(str(name)[:80])
    if found in TARGETS:
        return TARGETS[found]
    trainer = TRAINERS.canonical(found)
    meant = _MEANT.get(trainer if trainer in TRAINERS else found.strip().lower())
    if meant is None:
        known = TARGETS.names() if nearest(found, TARGETS.names()) else TARGETS
        raise UnsupportedError(unknown_name("target", found, known), code="MW406")
    if trainer in TRAINERS:
        what, why = f"no files are written for {TRAINERS[trainer].title}", "`meshwright check` reads those there are"
    else:
        what, why = f"{found!r} is not one target", "several trainers are meant by it"
    raise UnsupportedError(what=what, why=why, fix=f"nearest: {', '.join(meant)}", field="target", code="MW406")


def readers() -> tuple[str, ...]:
    """Targets whose files are read as plans."""
    return tuple(name for name, target in TARGETS.items() if target.read is not None)


def reader_named(name: str) -> Target:
    """The target or trainer of a name that is known."""
    return TRAINERS[name] if name in TRAINERS else TARGETS[name]


def target_of_file(name: str, text: str) -> str | None:
    """The target or trainer whose file this is, by its name and text; None where none or several say so."""
    found = [one for one in (*TARGETS, *TRAINERS) if reader_named(one).recognised(name, text)]
    # A trainer around an engine has the engine's keys among its own.
    trainers = [one for one in found if one in TRAINERS]
    found = trainers if len(trainers) == 1 else found
    return found[0] if len(found) == 1 else None
