"""No request reads a file of the service's machine, whatever field or document names it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from meshwright.service.catalogue import SERVED, asked_fields, path_of
from tests.service.conftest import CANARY, Service

BASE: dict[str, dict[str, Any]] = {
    "plan": {"model": "gpt2", "gpus": "2xH100", "global_batch": 8, "top": 1},
    "estimate": {"model": "gpt2", "gpus": "2xH100", "plan": "tp2.mbs1"},
    "check": {"model": "gpt2", "gpus": "2xH100", "plan": "tp2.mbs1", "search": False},
    "size": {"model": "gpt2", "device": "H100", "step_time": 10, "global_batch": 8},
    "schedule": {"name": "1f1b", "p": 2, "m": 4},
}


def places(folder: str) -> list[str]:
    """Ways to name the canary, and files that every machine has."""
    up = "../" * 12
    return [
        *(
            f"{folder}/canary.json",
            f"{folder}/canary.json#1",
            f"./{folder}/canary.toml",
            f"{up}{folder[1:]}/canary.json",
        ),
        *("canary.json", "./canary.json", "~/canary.json", "/etc/passwd", f"{up}etc/passwd", "file:///etc/passwd"),
        *("/proc/self/environ", "/dev/stdin", "-", "a/../../canary.json", "C:\\canary.json", f"gpt2\0{folder}"),
    ]


@pytest.mark.parametrize("verb", SERVED)
def test_no_field_names_a_file_of_the_machine(verb: str, service: Service) -> None:
    named = {name for name, one in asked_fields(verb).items() if type(one.kind).__name__ in ("Kind", "Texts")}
    for name in sorted(named):
        for place in places(str(service.folder)):
            body = {**BASE.get(verb, {}), name: place}
            answer = service.ask("POST", f"/v1/{path_of(verb)}", body)
            assert answer.status in (200, 400, 422), (name, place, answer.content)
            assert CANARY.encode() not in answer.content
            assert b"root:" not in answer.content
            assert b"PATH=" not in answer.content


def test_a_file_that_is_there_answers_as_one_that_is_not(service: Service) -> None:
    for name in ("model", "cluster", "calibration", "prices", "lengths"):
        body = {**BASE["estimate"], name: f"{service.folder}/canary.json"}
        if name == "cluster":
            del body["gpus"]
        there = service.ask("POST", "/v1/estimate", body)
        body[name] = f"{service.folder}/absent.json"
        absent = service.ask("POST", "/v1/estimate", body)
        assert there.content.replace(b"canary", b"absent") == absent.content


@pytest.mark.parametrize("way", ["source {}", ". {}", "bash {}", "cat {}", "python train.py --yaml-cfg {}"])
def test_a_script_reads_no_other_file(way: str, service: Service) -> None:
    own = f"{service.folder}/canary.sh"
    for place in (own, "../canary.sh", "/etc/passwd", "$HOME/../../etc/passwd"):
        script = f"#!/bin/bash\n{way.format(place)}\ntorchrun pretrain_gpt.py --tensor-model-parallel-size 2 \\\n $X\n"
        body = {"model": "gpt2", "gpus": "2xH100", "source": "train.sh", "environment": [f"X={place}"]}
        # The search for a better plan takes a second; what it edits is the script as it was read.
        body |= {"files": {"train.sh": script}, "search": place == own}
        answer = service.ask("POST", "/v1/check", body)
        assert answer.status in (200, 400, 422)
        assert CANARY.encode() not in answer.content
        assert b"root:" not in answer.content


@pytest.mark.parametrize("name", ["../x.json", "/tmp/x.json", "a/b", "..", "", ".hidden", "x\0y", "x" * 200])
def test_a_document_has_a_plain_name(name: str, service: Service) -> None:
    answer = service.ask("POST", "/v1/estimate", {**BASE["estimate"], "files": {name: "{}"}})
    assert (answer.status, answer.data["code"]) == (400, "MW270")


def test_documents_of_one_request_are_gone_with_it(service: Service) -> None:
    body = {**BASE["estimate"], "files": {"left.json": '{"model_type": "gpt2"}'}, "model": "left.json"}
    service.ask("POST", "/v1/estimate", body)
    after = service.ask("POST", "/v1/estimate", {**BASE["estimate"], "model": "left.json"})
    assert after.status == 400
    assert "the path does not exist" in after.content.decode()


def test_code_and_programs_are_not_loaded(service: Service) -> None:
    for named in ("galvatron", "compiler", "os:system", "native,subprocess:Popen"):
        answer = service.ask("POST", "/v1/plan", {**BASE["plan"], "parallelizer": named})
        assert (answer.status, answer.data["problems"][0]["field"]) == (400, "parallelizer")


def test_a_worker_that_were_fooled_opens_nothing(tmp_path: Any) -> None:
    """The last wall, by itself: what passes every check still meets a process that opens no file."""
    (tmp_path / "own.txt").write_text("own")
    program = f"""
import os, pathlib, socket, subprocess
from meshwright.service.confined import Confinement
wall = Confinement(pathlib.Path({str(tmp_path)!r}))
def refused(work):
    try:
        work()
    except PermissionError:
        return True
    return False
with wall.shut():
    assert open({str(tmp_path / "own.txt")!r}).read() == "own"
    assert refused(lambda: open("/etc/passwd"))
    assert refused(lambda: os.open("/etc/hostname", os.O_RDONLY))
    assert refused(lambda: os.listdir("/"))
    assert refused(lambda: open({str(tmp_path)!r} + "/../outside", "w"))
    assert refused(lambda: subprocess.run(["true"]))
    assert refused(lambda: os.system("true"))
    assert refused(lambda: socket.create_connection(("127.0.0.1", 9)))
    assert refused(lambda: os.remove({str(sys.executable)!r}))
    assert refused(lambda: os.rename({str(tmp_path / "own.txt")!r}, "/tmp/meshwright-outside"))
    assert refused(lambda: os.link({str(tmp_path / "own.txt")!r}, "/tmp/meshwright-outside"))
    assert refused(lambda: os.symlink("/etc/passwd", {str(tmp_path / "link")!r}))
    assert refused(lambda: open(os.__file__, "a"))
    assert refused(lambda: os.open(os.__file__, os.O_RDWR))
    assert refused(lambda: os.chmod(os.__file__, 0o777))
    assert refused(lambda: __import__("sqlite3").connect("/tmp/meshwright-outside"))
    assert open(os.__file__).read(1)
    open({str(tmp_path / "made.txt")!r}, "w").write("own")
    os.rename({str(tmp_path / "made.txt")!r}, {str(tmp_path / "moved.txt")!r})
assert not refused(lambda: open("/etc/passwd").close())
"""
    subprocess.run([sys.executable, "-c", program], check=True)
