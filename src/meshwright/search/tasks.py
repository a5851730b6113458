"""Parts of a space as tasks, done here, on the cores of this machine (`on_cores`) or on a Ray cluster (`on_ray`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

Part = TypeVar("Part")
Answer = TypeVar("Answer", covariant=True)


@runtime_checkable
class PricingTask(Protocol[Answer]):
    """A part of a space, small enough to be done again if it is lost; it can be pickled."""

    def __call__(self) -> Answer:
        """Search it."""


Runner = Callable[[Sequence[Any]], Iterator[tuple[int, Any]]]
"""Does tasks in any order; gives position and answer of every task once, as they end."""


def do_task(task: PricingTask[Part]) -> Part:
    """Do one task; Ray shows this name."""
    return task()


def run_here(tasks: Sequence[PricingTask[Part]]) -> Iterator[tuple[int, Part]]:
    """The runner of this process.

    Args:
        tasks: the parts.
    """
    for place, task in enumerate(tasks):
        yield place, do_task(task)
