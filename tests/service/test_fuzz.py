"""Bodies that nobody would write: whatever comes, the service answers, and never with a fault of its own.

`FUZZ_BODIES=10000 pytest tests/service/test_fuzz.py` asks more of them.
"""

from __future__ import annotations

import json
import os
from base64 import b64encode
from functools import cache
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from meshwright.app.pages.answers import PageAnswers
from meshwright.report.page.shell import LIVE_VIEWS, VIEWS
from meshwright.service.catalogue import SERVED, asked_fields, path_of
from meshwright.service.page import page_app
from tests.report.page.sources import source
from tests.service.conftest import Service

BODIES = int(os.environ.get("FUZZ_BODIES", "150"))
GOOD: dict[str, list[Any]] = {
    "model": ["gpt2", "llama-3.1-8b"],
    "gpus": ["2xH100", "1xH100,1xA100-80", "8xH100"],
    "plan": ["tp2.mbs1", "tp1.mbs1.z3", "tp2.pp2.dp2.mbs1"],
    "global_batch": [8],
    "p": [2],
    "m": [4],
    "name": ["1f1b", "H100", "list"],
    "target": ["megatron"],
    "step_time": [10],
    "device": ["H100"],
    "source": ["2xH100", "x.json"],
    "first": ["x.json"],
    "top": [1],
    "search": [False],
    "pin": [["tp=1"]],
}
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 10**30, 1e308, -1e-308, 1, 2, 10**12]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(
        ["", "-", "..", "/etc/passwd", "#", "=", ",", "tp=0", "0x", "1e9999", "{}", "pp2.pp2", "list", "best"]
    ),
    st.sampled_from(
        ["8x", "0xH100", "99999999xH100", "1xH100+1xH100", "none", "all", "auto", "int4", "r=16", "x.json#9"]
    ),
    st.lists(st.one_of(st.integers(), st.text(max_size=8), st.none()), max_size=4),
    st.dictionaries(
        st.text(max_size=8), st.one_of(st.integers(), st.text(max_size=8), st.lists(st.integers())), max_size=3
    ),
    st.sampled_from(
        [{"schema": "meshwright.plan/1"}, {"schema": "meshwright.plan-set/1", "plans": [{}]}, {"group": [{}]}]
    ),
)


@st.composite
def questions(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A verb with a body: mostly its own fields, some right, some not."""
    verb = draw(st.sampled_from(SERVED))
    fields = sorted(asked_fields(verb))
    body: dict[str, Any] = {name: draw(st.sampled_from(GOOD[name])) for name in fields if name in GOOD}
    for name in draw(st.lists(st.sampled_from([*fields, "files"]), max_size=4)):
        body[name] = draw(ODD)
    if draw(st.booleans()):
        body[draw(st.text(max_size=6))] = draw(ODD)
    if verb in ("plan", "size", "report"):
        body |= {"pin": ["tp=1", "pp=1"], "model": "gpt2"}
    return verb, body


@settings(max_examples=BODIES, suppress_health_check=[*HealthCheck])
@given(questions())
def test_no_body_is_a_fault_of_the_service(service: Service, asked: tuple[str, dict[str, Any]]) -> None:
    verb, body = asked
    address = urlsplit(service.url)
    connection = HTTPConnection(address.netloc, timeout=240)
    try:
        content = json.dumps(body).encode()
        connection.request("POST", f"/v1/{path_of(verb)}", content)
        response = connection.getresponse()
        answer = json.loads(response.read())
    finally:
        connection.close()
    assert response.status in (200, 400, 408, 422), (verb, body, answer)
    if response.status != 200:
        assert answer["problems"]
        assert all(problem["what"] for problem in answer["problems"])


CHANGES: dict[str, list[Any]] = {
    "tp": [1, 2],
    "pp": [1, 2],
    "recompute": ["full"],
    "sharding": ["z3"],
    "schedule": ["zb-h1"],
    "seq_len": [1024],
    "global_batch": [64],
    "row": ["tp2.mbs1"],
    "price": [2.5, {"H100": 2}],
    "numbers": [{"NVLink4 bandwidth": 0.5}],
    "expert_load": ["zipf:1"],
}
SCHEDULE = {"name": "1f1b", "p": 2, "m": 4, "v": None, "forward_s": 1.0, "input_s": 1.0, "weight_s": 1.0}
QUICK_VIEWS = [view for view in (*VIEWS, *LIVE_VIEWS) if view not in ("why", "frontier")]
TABLES = ["value,status,tp\n1.5,ok,2\n", "number,value,state\n0,inf,COMPLETE\n", "trial,value\n1e400,nan\n"]
OWN: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "what-if": {"view": st.sampled_from(QUICK_VIEWS), "quantities": st.booleans()},
    "view": {"name": st.sampled_from(QUICK_VIEWS), "asked": st.just(SCHEDULE)},
    "run": {"log": st.sampled_from(["iteration 1 elapsed time per iteration (ms): 57.7\n", "{}"]), "name": ODD},
    "accuracy": {"measured": st.just("model,gpus,plan,step_time_s\ngpt2,2xH100,tp2,1\n")},
    "study": {"file": st.sampled_from(TABLES).map(lambda text: b64encode(text.encode()).decode()), "name": ODD},
    "expert-load": {"counts": st.sampled_from(["1,2,3\n", "[[1,2]]", "zipf:1"])},
    "plan-file": {},
    "trace": {"form": st.sampled_from(["svg", "chrome"])},
    "export": {"target": st.sampled_from(["megatron", "torchtitan"])},
    "page": {},
    "fields": {},
}
"""Routes of the page that start no process, with what each is asked."""


@cache
def page() -> tuple[TestClient, str]:
    """A page in this process, and the name of its answer."""
    answers = PageAnswers()
    name = answers.add(source("dense"))
    client = TestClient(page_app(answers, name, "key"), base_url="http://127.0.0.1", raise_server_exceptions=False)
    return client, name


@st.composite
def page_questions(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A route with a body: a good one, in which some values are odd."""
    route = draw(st.sampled_from(sorted(OWN)))
    changed = draw(st.lists(st.sampled_from(sorted(CHANGES)), max_size=2, unique=True))
    changes = {name: draw(st.one_of(st.sampled_from(CHANGES[name]), ODD)) for name in changed}
    body = {"answer": page()[1], "plan": 0, "changes": changes, **{name: draw(own) for name, own in OWN[route].items()}}
    if draw(st.booleans()):
        body[draw(st.sampled_from(sorted(body)))] = draw(st.one_of(ODD, st.just("\ud800"), st.just({"p": "\udfff"})))
    return route, body


@settings(max_examples=BODIES, suppress_health_check=[*HealthCheck], deadline=None)
@given(page_questions())
def test_no_body_is_a_fault_of_the_page(asked: tuple[str, dict[str, Any]]) -> None:
    route, body = asked
    response = page()[0].post(f"/key/{route}", content=json.dumps(body))
    assert response.status_code in (200, 400, 409, 422), (route, body, response.text)
    if response.status_code != 200:
        assert all(problem["what"] for problem in response.json()["problems"])
