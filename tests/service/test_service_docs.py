"""The commands and programs of docs/service.md run against a service, as they stand there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service.conftest import Service

PAGE = (Path(__file__).parents[2] / "docs" / "service.md").read_text()
EXAMPLES = Path(__file__).parents[2] / "examples" / "service"
CURL = [
    command
    for block in re.findall(r"^```bash\n(.*?)^```", PAGE, re.M | re.S)
    for command in re.split(r"\n(?=curl )", block.strip())
]


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("command", CURL)
def test_a_command_of_the_page_is_answered(command: str, service: Service) -> None:
    done = subprocess.run(
        ["bash", "-c", command], env={"SERVICE": service.url, "PATH": "/usr/bin:/bin"}, capture_output=True, check=True
    )
    answer = json.loads(done.stdout)
    assert answer["schema"].startswith("meshwright.")
    assert "problems" not in answer


def test_the_program_of_the_page_runs(service: Service) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    text = f"SERVICE = {service.url!r}\n{program}"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    first, *states, last = done.stdout.strip().splitlines()
    assert "llama-3.1-70b" in first
    assert states[-1] == "done"
    assert "gpt2" in last


def test_the_container_starts_with_options_that_the_command_has() -> None:
    from meshwright.app.requests.serve import ServeRequest
    from meshwright.fields.request import request_fields

    known = {one.spelled for one in request_fields(ServeRequest)}
    for place in (EXAMPLES.parents[1] / "Dockerfile", EXAMPLES / "kubernetes.yaml"):
        used = set(re.findall(r"--(?:host|open|port|workers|queue|token)\b", place.read_text()))
        assert used
        assert used <= known


def test_jobs_in_a_cluster_outlive_their_pod() -> None:
    yaml = pytest.importorskip("yaml")
    kinds = {one["kind"]: one for one in yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())}
    deployment = kinds["Deployment"]["spec"]
    pod = deployment["template"]["spec"]
    arguments = pod["containers"][0]["args"]
    queue = Path(arguments[arguments.index("--queue") + 1])
    (mount,) = (one for one in pod["containers"][0]["volumeMounts"] if Path(one["mountPath"]) in queue.parents)
    (volume,) = (one for one in pod["volumes"] if one["name"] == mount["name"])
    claim = volume["persistentVolumeClaim"]["claimName"]
    assert claim == kinds["PersistentVolumeClaim"]["metadata"]["name"]
    # A claim of one node, and a queue with one writer: the old pod ends before the new one starts.
    assert (deployment["replicas"], deployment["strategy"]["type"]) == (1, "Recreate")
