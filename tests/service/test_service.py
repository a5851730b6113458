"""`meshwright serve` over HTTP: answers of the command line, errors with all problems, limits, jobs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from jsonschema import Draft202012Validator

import meshwright as mw
from meshwright.app.verbs import VERBS
from meshwright.errors import InfeasibleError, InputError, MeshwrightError, UnsupportedError
from meshwright.service.catalogue import REFUSED, SERVED, asked_fields, path_of
from tests.service.conftest import Service, started, stop

ESTIMATE = {"model": "llama-3.1-8b", "plan": "tp2.mbs1.z1", "gpus": "8xH100"}
PLAN = {"model": "gpt2", "gpus": "2xH100", "global_batch": 8}
CLUSTER = '[[group]]\nname = "H100"\ndevice = "H100"\nnodes = 1\ndevices_per_node = 8\n'
SECONDS = {"model": "llama-3.1-70b", "gpus": "64xH100"}
LONG = {"model": "llama-3.1-405b", "gpus": "2048xH100", "seq_len": 8192, "schedule": "all"}


def printed(folder: Path, *words: str) -> bytes:
    """What the command prints with `--json`."""
    command = [sys.executable, "-m", "meshwright", *words, "--json"]
    return subprocess.run(command, cwd=folder, capture_output=True, check=True).stdout


def test_an_answer_is_what_the_command_prints(service: Service, tmp_path: Path) -> None:
    words = ("estimate", "llama-3.1-8b", "--plan", "tp2.mbs1.z1", "--gpus", "8xH100")
    answer = service.ask("POST", "/v1/estimate", ESTIMATE)
    assert answer.status == 200
    assert answer.content == printed(tmp_path, *words)
    assert service.ask("GET", "/v1/gpus/H100").content == printed(tmp_path, "gpus", "show", "H100")


def test_a_plan_is_what_the_function_finds_but_for_its_time(service: Service) -> None:
    found = service.ask("POST", "/v1/plan", PLAN).data
    known = json.loads(json.dumps(mw.plan("gpt2", gpus="2xH100", global_batch=8).to_dict()))
    assert {**found, "timing": None} == {**known, "timing": None}


def test_documents_come_with_the_request(service: Service, tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    words = ("estimate", "llama-3.1-8b", "--plan", "tp2.mbs1.z1", "--cluster", "cluster.toml")
    body = {
        "model": "llama-3.1-8b",
        "plan": "tp2.mbs1.z1",
        "cluster": "cluster.toml",
        "files": {"cluster.toml": CLUSTER},
    }
    assert service.ask("POST", "/v1/estimate", body).content == printed(tmp_path, *words)
    plans = service.client.ask("plan", **PLAN)
    compared = service.client.ask("compare", first="p.json#1", second="p.json#2", files={"p.json": plans})
    assert compared["schema"] == "meshwright.comparison/1"
    assert service.client.ask("explain", plan=plans)["schema"] == "meshwright.explanation/1"
    script = "torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 2 --micro-batch-size 1\n"
    body = {"model": "llama-3.1-8b", "gpus": "8xH100", "source": "train.sh", "files": {"train.sh": script}}
    assert service.client.ask("check", **body)["schema"] == "meshwright.check/1"


def test_an_error_has_all_problems_and_the_words_of_the_function(service: Service) -> None:
    answer = service.ask("POST", "/v1/plan", {"modell": "gpt2", "gpus": 3, "seq_len": "x", "dtype": "fp7"})
    assert (answer.status, answer.headers["content-type"]) == (400, "application/problem+json")
    assert {one["field"] for one in answer.data["problems"]} >= {"modell", "gpus", "seq_len", "dtype"}
    with pytest.raises(UnsupportedError) as local:
        mw.plan("llama-3.1-8bb", gpus="8xH100")
    with pytest.raises(UnsupportedError) as remote:
        service.client.ask("plan", model="llama-3.1-8bb", gpus="8xH100")
    assert remote.value.render() == local.value.render()
    with pytest.raises(InfeasibleError, match="MW3"):
        service.client.ask("plan", model="llama-3.1-405b", gpus="1xH100")


def test_an_unknown_name_is_no_unknown_address_but_at_its_own(service: Service) -> None:
    asked = service.ask("POST", "/v1/plan", {"model": "llama-3.1-8bb", "gpus": "8xH100"})
    shown = service.ask("GET", "/v1/models/llama-3.1-8bb")
    assert (asked.status, shown.status) == (422, 404)
    assert shown.data["status"] == 404
    for answer in (asked, shown):
        assert "did you mean llama-3.1-8b" in answer.data["detail"]
        (listed,) = answer.data["see"]
        assert "llama-3.1-8b" in service.ask("GET", listed).content.decode()


@pytest.mark.parametrize(
    ("method", "path", "status", "said"),
    [
        ("POST", "/v2/plan", 404, "v1"),
        ("POST", "/v1/plam", 404, "did you mean /v1/plan?"),
        ("POST", "/v1/run", 403, "it trains"),
        ("GET", "/v1/plan", 405, "POST"),
        ("GET", "/v1/jobs", 405, "POST"),
        ("POST", "/v1/jobs/none", 405, "DELETE, GET"),
        ("GET", "/v1/jobs/none", 404, "no such job"),
        ("GET", "/v1/gpus/..%2F..%2Fetc%2Fpasswd", 404, "nothing answers"),
    ],
)
def test_an_address_without_an_answer_says_what_there_is(
    service: Service, method: str, path: str, status: int, said: str
) -> None:
    answer = service.ask(method, path, {} if method == "POST" else None)
    assert answer.status == status
    assert said in answer.content.decode()
    assert answer.data["code"].startswith("MW27")


@pytest.mark.parametrize(
    "body", [b"[]", b"{", b"\xff", b'{"a":NaN}', b'{"gpus":"a","gpus":"b"}', b'{"model":"\\ud800"}', b"[" * 100_000]
)
def test_a_body_that_is_no_object_is_refused(service: Service, body: bytes) -> None:
    assert service.ask("POST", "/v1/plan", body).data["code"] == "MW270"


def test_a_body_that_is_encoded_is_refused(service: Service) -> None:
    answer = service.ask("POST", "/v1/estimate", ESTIMATE, **{"Content-Encoding": "gzip"})
    assert (answer.status, "encoded as 'gzip'" in answer.data["detail"]) == (400, True)


def test_headers_without_an_end_are_cut_off(service: Service) -> None:
    where = urlsplit(service.url)
    headers = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 10_000) for number in range(2000))
    with (
        socket.create_connection((where.hostname, where.port), timeout=60) as caller,
        pytest.raises(ConnectionError),
    ):
        caller.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" + headers)
    assert service.ask("GET", "/healthz").status == 200


def test_the_same_question_has_the_same_tag_and_is_not_sent_twice(service: Service) -> None:
    first = service.ask("POST", "/v1/plan", PLAN)
    again = service.ask("POST", "/v1/plan", dict(reversed(PLAN.items())))
    assert again.content == first.content
    unchanged = service.ask("POST", "/v1/plan", PLAN, **{"If-None-Match": first.headers["etag"]})
    assert (unchanged.status, unchanged.content) == (304, b"")
    other = service.ask("POST", "/v1/plan", {**PLAN, "top": 1})
    assert other.headers["etag"] != first.headers["etag"]


def test_health_and_metrics(service: Service) -> None:
    assert service.ask("GET", "/healthz").data["status"] == "ok"
    service.ask("POST", "/v1/estimate", ESTIMATE)
    text = service.ask("GET", "/metrics").content.decode()
    assert 'meshwright_requests_total{status="200",verb="estimate"}' in text
    assert 'meshwright_busy{lane="search"}' in text


def test_openapi_says_what_every_field_is(service: Service) -> None:
    document = service.ask("GET", "/openapi.json").data
    for verb in SERVED:
        schema = document["components"]["schemas"][verb.replace(" ", "_")]
        assert f"/v1/{path_of(verb)}" in document["paths"]
        assert set(schema["properties"]) == {*asked_fields(verb), "files"}
        assert all(one["description"] for one in schema["properties"].values())
    assert document["components"]["schemas"]["plan"]["properties"]["top"]["default"] == 5
    assert set(SERVED) | set(REFUSED) == set(VERBS)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/estimate", {"model": "gpt2", "gpus": "2xH100", "plan": "tp2.mbs1", "global_batch": 8}),
        ("/v1/check", {"model": "gpt2", "gpus": "2xH100", "plan": "tp2.mbs1", "global_batch": 8}),
        ("/v1/schedule", {"name": "1f1b", "p": 2, "m": 4}),
        ("/v1/clusters/show", {"source": "2x8xH100"}),
        ("/v1/gpus/{name}", None),
    ],
)
def test_answers_are_as_openapi_promises(service: Service, path: str, body: dict[str, Any] | None) -> None:
    document = service.ask("GET", "/openapi.json").data
    method = "GET" if body is None else "POST"
    promised = document["paths"][path][method.lower()]["responses"]["200"]["content"]["application/json"]["schema"]
    validator = Draft202012Validator({**promised, "components": document["components"]})
    answer = service.ask(method, path.format(name="H100"), body).data
    validator.validate(answer)
    assert not validator.is_valid({"schema": answer["schema"]})


def test_a_job_is_told_of_until_it_is_done(service: Service) -> None:
    name = service.client.start("plan", **PLAN)
    states = [state["state"] for state in service.client.events(name)]
    assert states[-1] == "done"
    assert service.client.wait(name)["schema"] == "meshwright.plan-set/1"
    wrong = service.client.start("plan", model="gpt2")
    with pytest.raises(InputError, match="cluster"):
        service.client.wait(wrong)
    assert service.client.job(wrong)["state"] == "failed"


def test_a_cancelled_job_stops(service: Service) -> None:
    name = service.client.start("plan", **LONG)
    progress = next(state["progress"] for state in service.client.events(name) if state["progress"])
    assert service.client.job(name)["state"] == "running"
    assert 0 <= progress["decided"] <= progress["space"]
    assert (progress["best"] is None) == (progress["best_s"] is None)
    assert service.client.cancel(name)["state"] == "cancelled"
    with pytest.raises(MeshwrightError, match="cancelled"):
        service.client.wait(name)
    assert service.ask("POST", "/v1/plan", {**PLAN, "top": 2}).status == 200


def test_a_job_outlives_its_worker(service: Service) -> None:
    name = service.client.start("plan", **SECONDS)
    until(lambda: service.client.job(name)["state"] == "running")
    time.sleep(0.3)
    killed = service.searchers()
    for process in killed:
        os.kill(process, signal.SIGKILL)
    until(lambda: not {*killed} & {*service.children()})
    assert service.client.wait(name)["schema"] == "meshwright.plan-set/1"
    assert service.client.job(name)["attempts"] == 2


def test_a_job_outlives_its_service_and_limits_hold(tmp_path: Path) -> None:
    queue, options = str(tmp_path / "jobs.db"), ("--workers", "1", "--time-limit", "10ms", "--body-limit", "4kB")
    first = started(tmp_path, *options, "--queue", queue, MESHWRIGHT_TOKEN="secret")
    show = {"Authorization": "Bearer secret"}
    for path in ("/v1", "/openapi.json", "/metrics"):
        closed = first.ask("GET", path)
        assert (closed.status, closed.headers["www-authenticate"]) == (401, "Bearer")
    assert first.ask("GET", "/healthz").status == 200
    assert first.ask("POST", "/v1/plan", {"model": "x" * 5000}, **show).status == 413
    slow = first.ask("POST", "/v1/plan", {**PLAN, "schedule": "all"}, **show)
    assert (slow.status, slow.data["code"]) == (408, "MW272")
    assert "POST /v1/jobs" in slow.data["problems"][0]["fix"]
    accepted = first.ask("POST", "/v1/jobs", {"verb": "plan", **SECONDS}, **show).data["id"]
    first.process.kill()
    first.process.communicate(timeout=120)
    second = started(tmp_path, "--workers", "1", "--queue", queue)
    assert second.client.wait(accepted)["schema"] == "meshwright.plan-set/1"
    stop(second)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--host", "0.0.0.0"), "--open is missing"),
        (("--host", "0.0.0.0", "--open"), "--token is missing"),
        (("--open",), "only this machine"),
    ],
)
def test_other_machines_are_let_in_by_a_flag_and_a_token(
    options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from meshwright.cli import main

    assert main(["serve", *options]) == 2
    assert said in capsys.readouterr().err


def test_a_port_in_use_names_the_next_free_one(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    from meshwright.cli import main

    assert main(["serve", "--port", service.url.rpartition(":")[2]]) == 2
    assert "fix: --port " in capsys.readouterr().err


def test_a_queue_that_cannot_be_used_is_said_before_anybody_asks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from meshwright.cli import main

    (tmp_path / "notes.txt").write_text("not a database, and long enough to be read as one\n" * 100)
    for place in (tmp_path / "notes.txt", tmp_path / "absent" / "jobs.db"):
        assert main(["serve", "--queue", str(place)]) == 2
        assert f"--queue {str(place)!r} cannot be used" in capsys.readouterr().err


def test_a_page_of_a_browser_cannot_ask_by_another_name(service: Service) -> None:
    assert service.ask("POST", "/v1/estimate", ESTIMATE, Host="evil.example").status == 421


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
def test_a_page_of_a_browser_cannot_ask_by_our_name(service: Service, origin: str) -> None:
    """A form or a script of another site reaches 127.0.0.1 too; the browser says where it comes from."""
    assert service.ask("POST", "/v1/jobs", {"verb": "estimate", **ESTIMATE}, Origin=origin).status == 403


def until(true: Any, *, limit_s: float = 240.0) -> None:
    """Wait, four minutes at most unless a limit is given."""
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)
