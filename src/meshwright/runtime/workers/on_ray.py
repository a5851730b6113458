"""Mesh workers as Ray actors, one per mesh, placed by a placement group; Ray starts them, places them and misses them.

What the workers send each other goes through their own channels: Ray carries one call per worker and step.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.errors import LostError, Problem
from meshwright.ray_cluster import HERE, connect, ray_module
from meshwright.runtime.workers.crew import Answer, Failed, Gone
from meshwright.runtime.workers.worker import BETWEEN, FOLDER

PLACED_S = 60.0
"""Time for the cluster to find room for all workers."""
APART_BYTES = 1 << 16
"""Smaller arrays are copied with what surrounds them."""
ASK_S = 1.0
"""Time between two questions where workers are."""

LOG_BYTES, LOG_LINES = 4096, 3
"""Bytes of a dead worker's log that are read, and lines of them that are shown."""


class RayCrew:
    """One actor per mesh; see `crew.Crew`."""

    host = ""

    def __init__(
        self, environments: Sequence[dict[str, str]], address: str | None, owned: Sequence[Mapping[str, float]]
    ) -> None:
        """Start the workers.

        Args:
            environments: what each adds to its environment before JAX starts.
            address: the address of the cluster, as `ray_cluster.connect` takes it; without it the one this process has
                joined, or one of this machine.
            owned: what each owns beside processors, as Ray counts it: `{"GPU": 2}`.

        Raises:
            LostError: the cluster has no room for the workers.
        """
        self._ray = ray = ray_module()
        # Named here: a worker that is killed while it connects cannot remove its own.
        self._folder = Path(tempfile.gettempdir()) / f"meshwright-{secrets.token_hex(8)}"
        self._own = not ray.is_initialized()
        if self._own:
            connect(ray, address or HERE)
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        meshes = len(environments)
        self._group = self._placed(owned)
        # One thread does the calls in order, another says where that one is.
        actor = ray.remote(max_restarts=0, concurrency_groups={"places": 1})(_actor_class(ray))
        self._actors = [
            actor.options(
                num_cpus=self._share,
                num_gpus=owned[mesh].get("GPU", 0),
                resources={name: amount for name, amount in owned[mesh].items() if name != "GPU"},
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=mesh),
            ).remote(mesh, {**environments[mesh], FOLDER: str(self._folder)})
            for mesh in range(meshes)
        ]
        # Small answers stay with the driver once they are there, so that they outlive the actor.
        self._logs = [actor.log.remote() for actor in self._actors]
        self._calls: dict[int, Any] = {}
        self._questions: dict[int, Any] = {}
        self._places = [BETWEEN] * meshes
        self._asked = 0.0

    def _placed(self, owned: Sequence[Mapping[str, float]]) -> Any:
        """Room for one worker per mesh, on as many hosts as there are."""
        from ray.util.placement_group import placement_group

        processors = self._ray.cluster_resources().get("CPU", 1.0)
        meshes = len(owned)
        self._share = min(1.0, int(100 * processors / meshes) / 100)
        group = placement_group([{"CPU": self._share, **own} for own in owned], strategy="SPREAD")
        if not group.wait(PLACED_S):
            raise LostError(
                Problem(
                    what=f"the Ray cluster found no room for {meshes} workers within {PLACED_S:.0f} s",
                    why=_wanted(owned, self._share, self._ray.cluster_resources()),
                    fix="wait until other jobs have ended, or add nodes",
                    field="backend",
                )
            )
        return group

    def pids(self) -> list[int]:
        """Process of each mesh, on its node."""
        return self._ray.get([actor.pid.remote() for actor in self._actors])

    def call(self, mesh: int, name: str, *arguments: Any) -> None:
        """See `Crew`."""
        self._calls[mesh] = self._actors[mesh].call.remote(_packed((name, arguments)))

    def answers(self, meshes: Sequence[int], limit_s: float) -> list[tuple[int, Answer]]:
        """See `Crew`."""
        by_call = {self._calls[mesh]: mesh for mesh in meshes}
        # Every question to Ray takes about as long as the rest of a call: one for all, and what has ended counts.
        ended, _ = self._ray.wait(list(by_call), num_returns=len(by_call), timeout=limit_s)
        return [(by_call[one], self._get(one, by_call[one])) for one in ended]

    def _get(self, reference: Any, mesh: int) -> Answer:
        try:
            found = self._ray.get(reference)
            return _unpacked(found) if isinstance(found, list) else found
        except self._ray.exceptions.RayError as error:
            first = (str(error).splitlines() or [type(error).__name__])[0][:200]
            return Gone(f"{first} (where it was is known to about {ASK_S:g} s); {self._log(mesh)}")

    def _log(self, mesh: int) -> str:
        """What a worker printed last, or where that is."""
        try:
            host, path = self._ray.get(self._logs[mesh], timeout=ASK_S)
        except Exception:
            return "it ended before it said where its log is"
        try:
            with open(path, "rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_BYTES))
                lines = log.read().decode(errors="replace").split("\n")
        except OSError:
            return f"its log is {path} on {host}"
        # Ray marks its own lines, which say where it keeps what, with a colon in front.
        last = [line.strip()[:200] for line in lines if line.strip() and not line.startswith(":")][-LOG_LINES:]
        return f"its log, {path}, ends: {' | '.join(last)}" if last else f"its log, {path}, is empty"

    def places(self) -> list[int]:
        """See `Crew`; asked for about once in `ASK_S`, and not waited for."""
        if self._questions:
            ended, _ = self._ray.wait(list(self._questions.values()), num_returns=len(self._questions), timeout=0)
            for mesh in [mesh for mesh, one in self._questions.items() if one in ended]:
                place = self._get(self._questions.pop(mesh), mesh)
                if isinstance(place, int):
                    self._places[mesh] = place
        if time.monotonic() - self._asked > ASK_S:
            self._asked = time.monotonic()
            for mesh, actor in enumerate(self._actors):
                if mesh not in self._questions:
                    self._questions[mesh] = actor.place.remote()
        return list(self._places)

    def close(self, *, kill: bool) -> None:
        """See `Crew`; a cluster that was started or joined for the crew is left."""
        from ray.util.placement_group import remove_placement_group

        with contextlib.suppress(Exception):
            for actor in self._actors:
                self._ray.kill(actor)
            remove_placement_group(self._group)
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._own:
            self._ray.shutdown()


def _wanted(owned: Sequence[Mapping[str, float]], share: float, there: Mapping[str, float]) -> str:
    """What all workers together want of each resource, and what the cluster has."""
    sums = {"CPU": share * len(owned)}
    for own in owned:
        for name, amount in own.items():
            sums[name] = sums.get(name, 0.0) + amount
    return "they want " + ", ".join(f"{wanted:g} {name} of {there.get(name, 0.0):g}" for name, wanted in sums.items())


def _packed(value: Any) -> list[Any]:
    """A value as bytes and, for Ray to share between processes, large arrays; Ray takes longer over everything else."""
    apart: list[Any] = []

    def within(one: pickle.PickleBuffer) -> bool:
        large = one.raw().nbytes >= APART_BYTES
        if large:
            apart.append(np.frombuffer(one.raw(), np.uint8))
        return not large

    return [pickle.dumps(value, 5, buffer_callback=within), *apart]


def _unpacked(packed: list[Any]) -> Any:
    return pickle.loads(packed[0], buffers=packed[1:])


def _actor_class(ray: Any) -> type:
    class RayWorker:
        """A `MeshWorker` in an actor."""

        def __init__(self, mesh: int, environment: dict[str, str]) -> None:
            os.environ.update(environment)
            import jax

            from meshwright.runtime.workers.worker import MeshWorker

            # This class came with modules that have imported JAX, which reads its own settings when it is imported.
            jax.config.update("jax_enable_x64", environment["JAX_ENABLE_X64"] == "1")
            jax.config.update("jax_platforms", environment["JAX_PLATFORMS"])

            self._place = BETWEEN
            self._one = threading.Lock()
            self._worker = MeshWorker(mesh, self._watch)

        def _watch(self, place: int) -> None:
            self._place = place

        def call(self, asked: list[Any]) -> list[Any]:
            """A method of the worker."""
            return _packed(self._answer(*_unpacked(asked)))

        def _answer(self, name: str, arguments: Sequence[Any]) -> Answer:
            if name in ("listen", "coordinator"):
                arguments = (ray.util.get_node_ip_address(),)
            try:
                with self._one:
                    return getattr(self._worker, name)(*arguments)
            except Exception as error:
                return Failed.of(error)

        def log(self) -> tuple[str, str]:
            """Host and path of the file that takes what this process prints as errors."""
            return ray.util.get_node_ip_address(), os.path.realpath("/proc/self/fd/2")

        @ray.method(concurrency_group="places")  # type: ignore[untyped-decorator]
        def place(self) -> int:
            """Place in the list."""
            return self._place

        def pid(self) -> int:
            """Identifier of the process."""
            return os.getpid()

    return RayWorker
