"""Bodies that nobody would write: whatever comes, the service answers, and never with a fault of its own.

`FUZZ_BODIES=10000 pytest tests/service/test_fuzz.py` asks more of them.
"""

from __future__ import annotations

import json
import os
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.service.catalogue import SERVED, asked_fields, path_of
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
