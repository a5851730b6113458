"""What a plan rests on: hashes of its model, cluster and calibration, and what has changed since it was made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

from meshwright.errors import MeshwrightError
from meshwright.formats.canonical import record_hash
from meshwright.formats.plan_json import MadeWith, PlanFile, PlannedJob
from meshwright.library import models
from meshwright.library.calibration import calibration
from meshwright.library.devices import device, published_efficiency
from meshwright.specs.calibration import Calibration
from meshwright.specs.device import DeviceSpec
from meshwright.specs.measured import MeasuredJob


def made_with(job: PlannedJob) -> MadeWith:
    """What a plan rests on now.

    Args:
        job: a plan that was just made or priced.

    Returns:
        Hashes of its own model and cluster, of the calibration that prices it, and of what the library has under the
        names of its model and devices.
    """
    model = job.profile if isinstance(job, MeasuredJob) else job.model
    return MadeWith(
        model=record_hash_of(model),
        cluster=record_hash_of(job.cluster),
        calibration=record_hash_of(calibration_of(job)),
        library=tuple(_library(job)),
    )


def changes_since(file: PlanFile) -> tuple[str, ...]:
    """What has changed in library and calibration since a plan file was written, a sentence each.

    Args:
        file: the file as read; nothing is said of one that does not say what it was made with.
    """
    then = file.made_with
    if then is None:
        return ()
    said = []
    if record_hash_of(calibration_of(file.planned)) != then.calibration:
        said.append(
            "the calibration has changed since this plan was made: its times use the current one, its order does not"
        )
    before = dict(then.library)
    for name, now in _library(file.planned):
        if before.get(name, now) != now:
            _, _, called = name.partition(" ")
            said.append(
                f"the library's {called} has changed since this plan was made: the plan keeps what it was made for"
            )
    return tuple(f"{one}; plan again for today's best" for one in said)


def calibration_of(job: PlannedJob) -> Calibration:
    """The calibration that prices a plan."""
    return calibration(None if isinstance(job, MeasuredJob) else job.workload.calibration)


def _library(job: PlannedJob) -> Iterator[tuple[str, str]]:
    """Names that the library knows, each with the hash of what it has under them."""
    if not isinstance(job, MeasuredJob) and models.knows(job.model.name):
        with suppress(MeshwrightError):  # a file of the user's that cannot be read any more
            yield f"model {job.model.name}", record_hash_of(models.spec(job.model.name))
    for name in sorted({group.device.name for group in job.cluster.groups}):
        with suppress(MeshwrightError):  # a device that a cluster file describes
            yield f"device {name}", _device_hash(device(name))


@lru_cache(maxsize=64)
def _device_hash(known: DeviceSpec) -> str:
    """Hash of a device without what a calibration finds, which is in its own hash: with what that starts from."""
    return record_hash(replace(known, efficiency=published_efficiency(known.efficiency.generation)))


@lru_cache(maxsize=64)
def record_hash_of(record: Any) -> str:
    """`sha256:` and the digest of a record, remembered."""
    return record_hash(record)
