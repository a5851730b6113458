"""Workers that own GPUs or TPUs: what each is started with, where Ray puts it, what its programs are written for.

On a machine without a GPU, workers that ask for one say so; on one with two, they compute what one device does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax import export

import meshwright as mw
from meshwright.errors import InputError, LostError
from meshwright.ray_cluster import ray_module
from meshwright.runtime.workers.accelerators import owned_by, worker_environments
from meshwright.runtime.workers.portable import worker_programs
from tests.runtime.small import batch, initial, step

METHOD = mw.PipeshardParallel(num_stages=2, num_micro_batches=2)


def gpus_here() -> int:
    if shutil.which("nvidia-smi") is None:
        return 0
    return len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.splitlines())


def test_workers_of_a_machine_share_out_its_devices_in_order() -> None:
    owned = owned_by(["gpu", "H100", "rocm"], 3, 1)
    given = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8 --xla_dump_to=x"}
    first, second, third = worker_environments(owned, [2, 4, 1], given, here=True)
    assert (first["CUDA_VISIBLE_DEVICES"], second["CUDA_VISIBLE_DEVICES"]) == ("0,1", "2,3,4,5")
    assert third["HIP_VISIBLE_DEVICES"] == "0"
    assert (first["JAX_PLATFORMS"], third["JAX_PLATFORMS"]) == ("cuda,cpu", "rocm,cpu")
    assert first["XLA_FLAGS"] == "--xla_dump_to=x"


def test_only_devices_that_the_driver_was_given_are_shared_out() -> None:
    owned = owned_by("gpu", 2, 1)
    given = {"CUDA_VISIBLE_DEVICES": "3,5,7"}
    with pytest.raises(InputError, match="CUDA_VISIBLE_DEVICES=3,5,7"):
        worker_environments(owned, [2, 2], given, here=True)
    found = worker_environments(owned, [1, 2], given, here=True)
    assert [one["CUDA_VISIBLE_DEVICES"] for one in found] == ["3", "5,7"]


def test_a_process_of_a_tpu_machine_is_told_its_chips() -> None:
    (one,) = worker_environments(owned_by("tpu", 1, 1), [4], {}, here=True)
    assert (one["TPU_VISIBLE_CHIPS"], one["TPU_CHIPS_PER_PROCESS_BOUNDS"]) == ("0,1,2,3", "2,2,1")
    with pytest.raises(InputError, match="a TPU worker of 3 chips"):
        worker_environments(owned_by("tpu", 1, 1), [3], {}, here=True)


def test_ray_is_asked_for_devices_of_the_kind() -> None:
    h100, v100, cpu, tpu = owned_by(["H100", "V100-16", "cpu", "tpu"], 4, 1)
    assert h100.resources(8) == {"GPU": 8, "accelerator_type:H100": 0.001}
    assert v100.resources(2) == {"GPU": 2, "accelerator_type:V100": 0.001}
    assert cpu.resources(4) == {}
    assert tpu.resources(4) == {"TPU": 4}
    assert "CUDA_VISIBLE_DEVICES" not in worker_environments([h100], [8], {}, here=False)[0]


def test_what_cannot_be_is_refused_before_anything_starts() -> None:
    with pytest.raises(InputError) as wrong:
        mw.parallelize(step, worker_devices=("gpus", "gpu"), timeout_s=0.0)
    assert [one.field for one in wrong.value.problems] == ["worker_devices", "worker_devices", "timeout_s"]
    with pytest.raises(InputError, match="names 3 kinds for 2 meshes"):
        mw.parallelize(step, method=METHOD, backend="processes", worker_devices=["gpu"] * 3).lower(initial(), batch())


@pytest.mark.parametrize("platform", ["cuda", "rocm", "tpu"])
def test_programs_are_written_for_the_platform_of_each_mesh(platform: str) -> None:
    compiled = mw.parallelize(step, method=METHOD).lower(initial(), batch())
    one, other = worker_programs(compiled.program, list(compiled.runtime.meshes), ["cpu", platform])
    for part, wanted in ((one, "cpu"), (other, platform)):
        assert part.executables
        assert {export.deserialize(bytearray(body)).platforms for body in part.executables.values()} == {(wanted,)}


@pytest.mark.skipif(gpus_here() > 0, reason="this machine has GPUs")
def test_workers_without_the_devices_they_ask_for_say_so() -> None:
    run = mw.parallelize(step, method=METHOD, backend="processes", worker_devices="gpu", timeout_s=60.0)
    with pytest.raises(
        LostError, match=r"(?s)worker of mesh 0 failed while it started JAX and loaded its program.*cuda"
    ):
        run(initial(), batch())
    run.close()


@pytest.mark.skipif(gpus_here() < 2, reason="this machine has no two GPUs")
def test_workers_that_own_gpus_compute_what_one_device_does() -> None:
    method = mw.PipeshardParallel(num_stages=2, num_micro_batches=2, devices=jax.devices("cpu")[:2])
    run = mw.parallelize(step, method=method, backend="processes", worker_devices="gpu", timeout_s=120.0)
    found: Any = run(initial(), batch())
    expected: Any = jax.jit(step)(initial(), batch())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected)
    run.close()


@pytest.fixture
def cluster_of_gpus() -> Iterator[Any]:
    """A Ray that counts four GPUs, whether or not they are there."""
    pytest.importorskip("ray")
    ray = ray_module()
    try:
        ray.init(num_gpus=4, num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        pytest.skip(f"Ray did not start: {error}")
    yield ray
    ray.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_ray_gives_every_worker_gpus_of_its_own(cluster_of_gpus: Any) -> None:
    from meshwright.runtime.workers.on_ray import RayCrew

    owned = owned_by("gpu", 2, 1)
    crew = RayCrew(worker_environments(owned, [2, 2], {}, here=False), None, [one.resources(2) for one in owned])
    seen = [
        cluster_of_gpus.get(actor.__ray_call__.remote(lambda self: os.environ["CUDA_VISIBLE_DEVICES"]))
        for actor in crew._actors
    ]
    assert sorted(",".join(seen).split(",")) == ["0", "1", "2", "3"]
    crew.close(kill=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meshwright.runtime.workers.on_ray.PLACED_S", 1.0)
        with pytest.raises(LostError, match="no room for 2 workers within 1 s") as lost:
            RayCrew([{}, {}], None, [one.resources(4) for one in owned])
    assert "8 GPU of 4" in lost.value.problems[0].why
