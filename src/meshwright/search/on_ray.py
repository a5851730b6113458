"""Tasks on a Ray cluster: what a lost worker was doing is done again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwright.errors import InputError
from meshwright.ray_cluster import CODE, connect, ray_module
from meshwright.search.tasks import Part, PricingTask, do_task

WAITING_PER_PROCESSOR = 3
"""Tasks handed to the cluster per processor, so that none waits for the next and few are lost at once."""
RETRIES = 8
"""Workers a task may lose before it is given up."""
LOST = (
    "WorkerCrashedError", "RayActorError", "NodeDiedError", "ObjectLostError", "LocalRayletDiedError",
    "OutOfMemoryError",
)  # fmt: skip
"""What Ray raises for a task whose worker or node is gone."""


@dataclass(slots=True)
class OnRay:
    """Does tasks on a cluster; a `tasks.Runner`. Use it in a `with` block."""

    address: str
    """`host:port`, `auto` for the cluster that RAY_ADDRESS or this machine has, or `local`."""
    on_end: Callable[[int], None] | None = None
    """Called with the position of every task that ends."""
    redone: int = 0
    """Tasks done again because their worker was lost."""
    _ray: Any = None
    _lost: dict[int, int] = field(default_factory=dict)

    def __enter__(self) -> OnRay:
        self._ray = ray_module()
        connect(self._ray, self.address)
        return self

    def __exit__(self, *error: object) -> None:
        self._ray.shutdown()

    def processors(self) -> int:
        """Processors of the cluster now, at least 1."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def nodes(self) -> int:
        """Nodes of the cluster that are alive."""
        return sum(1 for node in self._ray.nodes() if node["Alive"])

    def __call__(self, tasks: Sequence[PricingTask[Part]]) -> Iterator[tuple[int, Part]]:
        """Do tasks; see `tasks.Runner`.

        Raises:
            InputError: the cluster loses a task's worker again and again.
        """
        ray = self._ray
        # Ray's own retries are off: a lost task comes back here, is counted, and is handed out again.
        remote = ray.remote(num_cpus=1, max_retries=0)(do_task)
        lost = tuple(getattr(ray.exceptions, name) for name in LOST)
        todo = list(range(len(tasks)))[::-1]
        running: dict[Any, int] = {}
        while todo or running:
            while todo and len(running) < WAITING_PER_PROCESSOR * self.processors():
                place = todo.pop()
                running[remote.remote(tasks[place])] = place
            ended, _ = ray.wait(list(running), num_returns=1, timeout=1.0)
            for reference in ended:
                place = running.pop(reference)
                try:
                    part = ray.get(reference)
                except lost as error:
                    self._again(place, error)
                    todo.append(place)
                    continue
                if self.on_end is not None:
                    self.on_end(place)
                yield place, part

    def _again(self, place: int, error: Exception) -> None:
        self.redone += 1
        self._lost[place] = self._lost.get(place, 0) + 1
        if self._lost[place] > RETRIES:
            what = f"the Ray cluster lost the same task {RETRIES + 1} times"
            why = str(error).splitlines()[0][:200]
            fix = "look at the cluster's workers with `ray status`; too little memory kills them"
            raise InputError(what=what, why=why, fix=fix, field="--ray", code=CODE) from None
