"""The live page: served to this machine under its own path, changed and searched in a real browser."""

from __future__ import annotations

import csv
import json
import os
import re
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from meshwright.app.pages.answers import PageAnswers
from meshwright.app.pages.source import page_source
from meshwright.app.requests.page import WebRequest
from meshwright.cli import main
from meshwright.errors import InputError
from meshwright.report.page.shell import LIVE_VIEWS, VIEWS
from meshwright.service.local import listening, redirect_file
from tests.report.page.chromium import Shown, chromium
from tests.report.page.sources import served

uvicorn = pytest.importorskip("uvicorn")
KEY = "a-path-nobody-knows"
MEASURED = Path(__file__).parents[1] / "app" / "data" / "measured_sample.csv"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    from meshwright.service.page import page_app

    answers = PageAnswers()
    first = answers.add(page_source(WebRequest.read({"model": "llama-3-8b", "gpus": "16xH100", "seq_len": 8192})))
    listener = listening(None)
    config = uvicorn.Config(page_app(answers, first, KEY), log_level="error", access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/{KEY}/"
    server.should_exit = True
    thread.join(10)
    listener.close()


@pytest.fixture(scope="module")
def browser(address: str) -> Iterator[Shown]:
    with chromium(own=address) as shown:
        yield shown


@pytest.fixture
def page(browser: Shown, address: str) -> Any:
    browser.complaints.clear()
    browser.page.set_viewport_size({"width": 1280, "height": 900})
    browser.page.goto("about:blank")
    browser.page.goto(address)
    browser.page.wait_for_selector("html[data-priced]", state="attached")
    return browser.page


def asked(url: str, body: Any = None, method: str | None = None, **headers: str) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=120) as found:
            text = found.read().decode()
            return found.status, json.loads(text) if "json" in found.headers["content-type"] else text
    except urllib.error.HTTPError as refused:
        with refused:
            text = refused.read().decode()
        return refused.code, json.loads(text) if text.startswith("{") else text


def priced(page: Any, act: Any) -> None:
    """Do something that has a plan priced, and wait for it."""
    before = int(page.evaluate("document.documentElement.dataset.priced"))
    act()
    page.wait_for_selector(f"html[data-priced='{before + 1}']", state="attached")


def plan_line(page: Any) -> str:
    found: str = page.inner_text(".verdict .plan")
    return found


def test_only_this_machine_under_the_secret_path_is_answered(address: str) -> None:
    root = address.removesuffix(f"{KEY}/")
    assert asked(address)[0] == 200
    assert asked(root)[0] == asked(f"{root}another/")[0] == 404
    assert asked(address, Host="evil.example")[0] == 404
    assert asked(f"{address}what-if", {}, Origin="http://evil.example")[0] == 404
    assert asked(f"{address}assets/../../secrets")[0] == 404


def test_requests_that_make_no_sense_are_refused_with_a_sentence(address: str) -> None:
    assert asked(f"{address}nothing", {})[0] == 404
    assert asked(f"{address}what-if", [1])[0] == 400
    for body in ({}, {"answer": "x"}, {"answer": 3, "plan": "x"}):
        code, found = asked(f"{address}what-if", body)
        assert (code, bool(found["problems"][0]["what"])) == (422, True)
    code, found = asked(f"{address}searches", {"fields": {"model": "gpt2", "gpus": "8xH100", "output": "x"}})
    assert (code, "output" in found["problems"][0]["what"]) == (422, True)
    for fields in ([], {"model": {}}, {"model": "gpt2", "seq_len": "x"}):
        assert asked(f"{address}searches", {"fields": fields})[0] == 422
    assert asked(f"{address}searches/x")[0] == 422
    first = re.search(r'"answer":"(\w+)"', asked(address)[1])
    assert first is not None
    wrong: tuple[Any, ...] = ({"numbers": {"x": "y"}}, {"recompute": {"a": 1}}, {"row": 5}, {"tp": 10**30}, [1], "tp")
    for changes in wrong:
        assert asked(f"{address}what-if", {"answer": first[1], "plan": 0, "changes": changes})[0] == 422
    for body in ({"name": "nothing"}, {"name": "why", "asked": {"x": 1}}, {"name": "why", "asked": 3}):
        assert asked(f"{address}view", {"answer": first[1], **body})[0] == 422
    for text in (
        b'{"answer": NaN}',
        b"[" * 100_000,
        b"\xff",
        b'{"plan": "\\ud800"}',
        b'{"plan": 1' + b"0" * 400 + b"}",
    ):
        request = urllib.request.Request(f"{address}what-if", text, method="POST")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=120)
        with refused.value:
            assert refused.value.code == 400


@pytest.mark.parametrize("width", [1280, 390])
def test_every_view_is_drawn_and_open_to_everyone(browser: Shown, page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    tabs = [tab.get_attribute("id").removeprefix("tab-") for tab in page.locator("[role=tab]").all()]
    assert tabs == [view for view in (*VIEWS, *LIVE_VIEWS) if view != "experts"]
    for view in tabs:
        page.click(f"#tab-{view}")
        page.wait_for_selector(f"html[data-drawn^='{view}:']", state="attached")
        page.wait_for_selector("#view > div > *")
        assert browser.serious() == []
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert browser.complaints == []


def test_a_setting_prices_the_plan_again_and_undo_goes_back(browser: Shown, page: Any) -> None:
    before = plan_line(page)
    priced(page, lambda: page.click("#knob-recompute-full"))
    assert plan_line(page) == f"{before}.rc-full"
    assert re.search(r"\+\d", page.inner_text(".tiles"))
    assert before in page.inner_text(".verdict")
    assert "changes=" in page.url
    priced(page, lambda: page.get_by_role("button", name="Undo").click())
    assert plan_line(page) == before
    assert browser.complaints == []


def test_a_slider_is_moved_by_keys_and_a_link_says_the_same(browser: Shown, page: Any, address: str) -> None:
    page.focus("#knob-seq_len")
    priced(page, lambda: page.keyboard.press("ArrowRight"))
    shown = page.inner_text(".tiles")
    assert page.locator("output[for=knob-seq_len]").inner_text() == "16,384"
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    page.wait_for_selector(".tiles .badge")
    assert page.inner_text(".tiles") == shown
    assert browser.complaints == []


@pytest.mark.parametrize("view", ["overview", "timeline", "memory"])
def test_a_pull_at_a_slider_asks_once_for_each_picture_and_stays_in_hand(browser: Shown, page: Any, view: str) -> None:
    page.click(f"#tab-{view}")
    page.wait_for_selector(f"html[data-drawn^='{view}:']", state="attached")
    slider = page.locator("#knob-NVLink4-bandwidth")
    page.evaluate("document.getElementById('knob-NVLink4-bandwidth').held = true")
    asks: list[str] = []
    page.on("request", lambda request: asks.append(request.url.rsplit("/", 1)[1]))
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    across = [box["x"] + box["width"] * share for share in (0.5, 0.4, 0.3, 0.2)]
    page.mouse.move(across[0], box["y"] + box["height"] / 2)
    page.mouse.down()
    for x in across[1:]:
        step = page.inner_text(".tile.lead .value")
        priced(page, lambda x=x: page.mouse.move(x, box["y"] + box["height"] / 2))
        assert page.inner_text(".tile.lead .value") != step
    assert asks == ["what-if"] * 3
    # The slider under the pointer is the one that was taken.
    assert page.evaluate("document.getElementById('knob-NVLink4-bandwidth').held")
    priced(page, page.mouse.up)
    assert "NVLink4 bandwidth x" in page.inner_text(".verdict")
    assert browser.complaints == []


def test_the_next_position_of_a_slider_is_asked_ahead_and_none_twice(browser: Shown, page: Any) -> None:
    asks: list[str] = []
    page.on("request", lambda request: request.url.endswith("what-if") and asks.append(request.post_data))
    moved = """([at]) => {
      const slider = document.getElementById("knob-NVLink4-bandwidth");
      slider.value = String(Number(slider.value) + at);
      slider.dispatchEvent(new Event("input", { bubbles: true }));
    }"""
    seen = []
    for step in (1, 1, 1, -1, -1):
        priced(page, lambda step=step: page.evaluate(moved, [step]))
        seen.append(page.inner_text(".tile.lead .value"))
    assert (seen[3], seen[4]) == (seen[1], seen[0])
    # Three positions, the one that would have come next, and the one that the way back would have come to.
    page.wait_for_timeout(300)
    assert len(asks) == len(set(asks)) == 5
    priced(page, lambda: page.dispatch_event("#knob-NVLink4-bandwidth", "change"))
    assert browser.complaints == []


@pytest.mark.parametrize("view", ["overview", "memory", "operators"])
def test_a_view_says_the_same_while_a_slider_is_held_as_when_it_is_let_go(page: Any, view: str) -> None:
    page.click(f"#tab-{view}")
    page.wait_for_selector(f"html[data-drawn^='{view}:']", state="attached")
    page.wait_for_selector("#view > div > *")
    said = """() => {
      const sizes = [...document.querySelectorAll("#view .fill, #view .fill i, #view rect, #view circle")];
      const names = ["style", "x", "y", "width", "cx", "cy", "r"];
      const shape = (one) => names.map((name) => one.getAttribute(name)).join(" ");
      const [view, tiles] = [document.getElementById("view"), document.querySelector(".tiles")];
      return [view.innerText, sizes.map(shape), tiles.innerText];
    }"""
    first = page.evaluate("document.querySelector('#view > div').firstChild.held = true")
    priced(
        page,
        lambda: page.evaluate("""() => {
      const slider = document.getElementById("knob-16-bit-GEMM-speed");
      slider.value = "5";
      slider.dispatchEvent(new Event("input", { bubbles: true }));
    }"""),
    )
    held = page.evaluate(said)
    assert first
    assert page.evaluate("document.querySelector('#view > div').firstChild.held")
    priced(page, lambda: page.dispatch_event("#knob-16-bit-GEMM-speed", "change"))
    page.wait_for_timeout(200)
    assert page.evaluate(said) == held


def test_a_pull_that_does_not_pause_is_drawn_on_its_way(browser: Shown, page: Any) -> None:
    drawn = page.evaluate("""async () => {
      const [slider, root] = [document.getElementById("knob-NVLink4-bandwidth"), document.documentElement];
      const begun = Number(root.dataset.redrawn);
      for (let at = 0; Number(root.dataset.redrawn) < begun + 3; at += 1) {
        slider.value = String(at % 24);
        slider.dispatchEvent(new Event("input", { bubbles: true }));
        await new Promise((done) => setTimeout(done));
      }
      slider.dispatchEvent(new Event("change", { bubbles: true }));
      return Number(root.dataset.redrawn) - begun;
    }""")
    assert drawn >= 3
    assert browser.complaints == []


def test_tab_goes_from_setting_to_setting_and_arrows_through_the_values_of_one(browser: Shown, page: Any) -> None:
    focused = "document.activeElement.id"
    page.focus("#knob-tp-1")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused) == "knob-tp-2"
    priced(page, lambda: page.keyboard.press("Enter"))
    assert page.evaluate(focused) == "knob-tp-2"
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "knob-cp-1"
    page.keyboard.press("Shift+Tab")
    assert page.evaluate(focused) == "knob-tp-2"
    assert browser.complaints == []


def test_an_illegal_value_says_its_rule_beside_it(browser: Shown, page: Any) -> None:
    value = page.locator(".choices [aria-disabled=true]").first
    rule = value.get_attribute("title")
    value.click(force=True)
    what, why, fix = page.locator("aside .knob .problem").inner_text().split("\n")
    assert f"{what}: {why.removeprefix('why: ')}" == rule
    assert fix.startswith("fix: ")
    priced(page, lambda: (page.fill("#knob-row", "tp3.pp7.mbs1"), page.keyboard.press("Tab")))
    assert "error[MW" in page.locator("aside .knob .problem").first.inner_text()


def test_a_kept_plan_stands_beside_the_changed_one(browser: Shown, page: Any) -> None:
    page.get_by_role("button", name="Keep", exact=True).click()
    priced(page, lambda: page.click("#knob-recompute-full"))
    page.click("#tab-compare")
    page.wait_for_selector("text=From A to B")
    table = page.locator(".beside")
    assert table.locator("th[scope=col]").count() == 3
    assert "recompute" in table.inner_text()
    assert table.locator("th[scope=col] wbr").count() > 2
    page.set_viewport_size({"width": 390, "height": 900})
    assert table.evaluate("one => one.scrollHeight - one.clientHeight") <= 0
    assert browser.complaints == []


def test_another_question_is_searched_and_wrong_ones_are_said_at_their_fields(browser: Shown, page: Any) -> None:
    page.get_by_role("button", name="New question").click()
    page.fill("#ask-gpus", "8xH101")
    page.get_by_role("button", name="Search").click()
    field = page.locator("dialog .field", has=page.locator("#ask-gpus"))
    page.wait_for_selector("dialog .problem")
    assert "unknown device 'H101'" in field.locator(".problem").inner_text()
    page.fill("#ask-gpus", "8xH100")
    page.get_by_role("button", name="Search").click()
    page.wait_for_selector(".facts:has-text('8xH100')")
    assert "meshwright plan llama-3-8b --gpus 8xH100 --seq 8192" in page.inner_text("footer")
    assert [text for text in browser.complaints if "422" not in text] == []


def test_the_form_of_a_question_needs_no_sideways_scroll_on_a_phone(browser: Shown, page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_role("button", name="New question").click()
    page.locator("dialog summary").click()
    page.fill("#ask-gpus", "8xH101")
    beyond = """() => {
      const dialog = document.querySelector("dialog");
      const right = dialog.getBoundingClientRect().right;
      return [dialog.scrollWidth - dialog.clientWidth, right - innerWidth, ...[...dialog.querySelectorAll("*")]
        .filter((one) => one.getBoundingClientRect().right > right + 0.5).map((one) => one.outerHTML.slice(0, 120))];
    }"""
    wide, out, *elements = page.evaluate(beyond)
    assert (wide <= 0, out <= 0, elements) == (True, True, [])
    page.get_by_role("button", name="Search").click()
    page.wait_for_selector("dialog .problem")
    wide, out, *elements = page.evaluate(beyond)
    assert (wide <= 0, out <= 0, elements) == (True, True, [])


def test_a_question_that_nothing_answers_offers_those_that_have_an_answer(browser: Shown, page: Any) -> None:
    page.get_by_role("button", name="New question").click()
    page.fill("#ask-model", "llama-3-8b")
    page.fill("#ask-gpus", "1xH100")
    page.get_by_role("button", name="Search").click()
    page.wait_for_selector("dialog .problem", timeout=120_000)
    assert "fits 1 x H100" in page.inner_text("dialog .problem >> nth=0")
    assert browser.serious() == []
    page.locator("dialog .chip", has_text="--lora").click()
    page.locator(".facts span", has_text=re.compile("· 1 GPU$")).wait_for(timeout=120_000)
    assert "--lora" in page.inner_text("footer")


def test_a_line_that_is_no_plan_stays_to_be_corrected(browser: Shown, page: Any) -> None:
    before = plan_line(page)
    priced(page, lambda: (page.fill("#knob-row", "tp3.pp2"), page.keyboard.press("Enter")))
    page.locator("#view", has_text="Not drawn: tp 3").wait_for()
    assert page.locator("aside .problem", has_text="tp 3 does not divide the 32 attention heads").count() == 1
    assert page.input_value("#knob-row") == "tp3.pp2"
    priced(page, lambda: page.locator("#view").get_by_role("button", name="Undo").click())
    page.wait_for_selector("#view .grid")
    assert (plan_line(page), page.input_value("#knob-row")) == (before, before)


def test_the_timeline_is_kept_as_a_figure_and_as_a_trace(browser: Shown, page: Any, address: str) -> None:
    priced(page, lambda: page.click("#knob-recompute-full"))
    page.click("#tab-timeline")
    kept = {}
    for name in ("SVG", "Trace"):
        with page.expect_download() as download:
            page.get_by_role("button", name=name, exact=True).click()
        kept[download.value.suggested_filename] = Path(download.value.path()).read_text()
    assert kept["timeline.svg"].startswith("<svg")
    events = json.loads(kept["trace.json"])["traceEvents"]
    assert sum(one["ph"] == "X" for one in events) > 16
    assert browser.complaints == []
    first = re.search(r'"answer":"(\w+)"', asked(address)[1])
    assert first is not None
    code, refused = asked(f"{address}trace", {"answer": first[1], "form": "pdf"})
    assert (code, "pdf" in refused["problems"][0]["what"]) == (422, True)


def test_a_log_that_is_dropped_is_compared(browser: Shown, page: Any, tmp_path: Any) -> None:
    lines = ["step,step_time_s"] + [f"{step},{9 + step % 3 / 10}" for step in range(1, 30)]
    (tmp_path / "steps.csv").write_text("\n".join(lines))
    page.click("#tab-run")
    page.set_input_files("#log", str(tmp_path / "steps.csv"))
    page.wait_for_selector("#view table")
    assert "measured" in page.inner_text("#view").lower()
    assert browser.complaints == []


@pytest.mark.parametrize("width", [1280, 390])
def test_measured_runs_are_points_and_a_point_shows_its_row(browser: Shown, page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.click("#tab-accuracy")
    page.set_input_files("#measured", str(MEASURED))
    page.wait_for_selector("#view circle")
    assert "the band one that is off by at most 20%" in page.inner_text("#view")
    first = page.locator("#view svg[aria-label^='Step time'] circle").first
    first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    name = page.evaluate("document.activeElement.getAttribute('aria-label').split(':')[0]")
    chosen = page.get_by_label("The chosen run")
    assert chosen.locator("h2").inner_text() == name
    cells = dict(zip(chosen.locator("dt").all_inner_texts(), chosen.locator("dd").all_inner_texts(), strict=True))
    (row,) = [row for row in csv.DictReader(MEASURED.read_text().splitlines()) if row["id"] == name]
    assert cells == {key: value for key, value in row.items() if value}
    assert browser.serious() == []
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert browser.complaints == []


def test_a_file_that_holds_no_runs_is_refused_beside_it(browser: Shown, page: Any, tmp_path: Any) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    page.click("#tab-accuracy")
    page.set_input_files("#measured", str(tmp_path / "other.csv"))
    page.wait_for_selector("#view .problem")
    assert [text for text in browser.complaints if "422" not in text] == []


def test_a_search_is_cancelled(address: str) -> None:
    question = {"model": "deepseek-v3", "gpus": "2048xH800", "schedule": "all"}
    _, begun = asked(f"{address}searches", {"fields": question})
    assert begun["command"].startswith("meshwright plan deepseek-v3")
    state: dict[str, Any] = {"state": "searching", "progress": None}
    while state["progress"] is None and state["state"] == "searching":
        time.sleep(0.05)
        state = asked(f"{address}searches/{begun['search']}")[1]
    assert state["state"] == "searching"
    assert 0 < state["progress"]["decided"] <= state["progress"]["space"]
    assert asked(f"{address}searches/{begun['search']}", method="DELETE")[1]["state"] == "cancelled"


@pytest.mark.parametrize("objective", ["time", "cost"])
def test_a_search_over_several_kinds_of_device_ends_in_an_answer(address: str, objective: str) -> None:
    question = {"model": "llama-3-8b", "gpus": "8xH100,8xA100-80", "objective": objective, "price": "2"}
    _, begun = asked(f"{address}searches", {"fields": question})
    state: dict[str, Any] = {"state": "searching"}
    while state["state"] == "searching":
        time.sleep(0.05)
        state = asked(f"{address}searches/{begun['search']}")[1]
    assert state["state"] == "done", state


def test_without_the_extra_its_name_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["web", "llama-3-8b", "--gpus", "8xH100"]) == 2
    assert "pip install 'meshwright[web]'" in capsys.readouterr().err


def test_a_port_in_use_names_the_next_one() -> None:
    with listening(None) as first, pytest.raises(InputError) as refused:
        listening(first.getsockname()[1])
    assert re.search(r"fix: --port \d+", str(refused.value))


def test_a_port_is_free_as_soon_as_its_service_stopped() -> None:
    first = listening(None)
    port = first.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as caller:
        answered, _ = first.accept()
        answered.close()
        first.close()
        assert caller.recv(1) == b""
    listening(port).close()


def test_the_command_says_its_address_and_ends_at_an_interrupt() -> None:
    command = [sys.executable, "-c", "import sys; from meshwright.cli import main; sys.exit(main())"]
    words = [*command, "web", "--no-browser"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        code, text = asked(url)
        assert (code, "llama-3.1-70b" in text) == (200, True)
        process.send_signal(2)
        assert process.wait(120) == 0


def test_an_interrupt_ends_the_page_while_a_request_is_under_way() -> None:
    command = [sys.executable, "-c", "import sys; from meshwright.cli import main; sys.exit(main())"]
    words = [*command, "web", "--no-browser"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = urllib.parse.urlparse(process.stdout.readline().strip())
        assert url.port is not None
        with socket.create_connection(("127.0.0.1", url.port)) as caller:
            head = f"POST {url.path}view HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Length: 100\r\n\r\n"
            caller.sendall(head.encode() + b'{"half": ')
            assert asked(url.geturl())[0] == 200
            process.send_signal(2)
            _, complaints = process.communicate(timeout=120)
        assert (process.returncode, "Traceback" in complaints) == (0, False)


@contextmanager
def opened_by_the_command(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`web` under way, and the address that its browser is sent to."""
    shown, browser = folder / "shown", folder / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {shown}.part; mv {shown}.part {shown}\n')
    browser.chmod(0o700)
    command = [sys.executable, "-c", "import sys; from meshwright.cli import main; sys.exit(main())", "web", *words]
    settings = {**os.environ, "BROWSER": str(browser)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=settings) as process:
        while not shown.exists() and process.poll() is None:
            time.sleep(0.01)
        file = Path(urllib.parse.unquote(urllib.parse.urlparse(shown.read_text().strip()).path))
        url = re.search(r'href="(http[^"]+)"', file.read_text())
        assert url is not None
        try:
            yield process, url[1]
        finally:
            if process.poll() is None:
                process.send_signal(2)
            process.wait(120)


def test_a_browser_shows_the_question_until_it_is_answered(browser: Shown, tmp_path: Path) -> None:
    with opened_by_the_command(tmp_path, "llama-3.1-405b", "--gpus", "1024xH100") as (process, url):
        code, text = asked(url)
        assert (code, "Planning llama-3.1-405b on 1024xH100" in text) == (200, True)
        assert asked(url, Host="evil.example")[0] == asked(f"{url}../")[0] == 404
        page, complaints = browser.page.context.browser.new_page(), []
        page.on("console", lambda said: said.type in ("error", "warning") and complaints.append(said.text))
        page.on("request", lambda request: request.url.startswith(url) or complaints.append(request.url))
        page.goto(url)
        page.wait_for_selector("html[data-drawn]", state="attached", timeout=120_000)
        assert "llama-3.1-405b" in page.inner_text(".facts")
        page.close()
        assert [one for one in complaints if not one.startswith("data:")] == []
        assert process.stdout is not None
        assert process.stdout.readline().strip() == url


def test_a_page_that_waits_shows_why_there_is_no_answer(tmp_path: Path) -> None:
    words = ("llama-3-8b", "--gpus", "8xH100", "--gbs", "4", "--pin", "dp=8")
    with opened_by_the_command(tmp_path, *words) as (process, url):
        problem = ""
        while not problem:
            problem = asked(f"{url}waiting")[1]
            time.sleep(0.02)
        assert "dp must divide the global batch" in problem
        assert process.wait(120) == 2


def test_a_question_that_no_plan_answers_opens_on_the_nearest_plans(browser: Shown) -> None:
    words = [sys.executable, "-m", "meshwright", "web", "llama-3-8b", "--gpus", "1xH100", "--no-browser"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        page, complaints = browser.page.context.browser.new_page(viewport={"width": 1280, "height": 900}), []
        page.on("console", lambda said: said.type in ("error", "warning") and complaints.append(said.text))
        page.goto(url)
        why = page.locator(".unanswered")
        why.locator(".chip").first.wait_for()
        assert "fits 1 x H100" in why.locator(".problem").inner_text()
        assert "fix:" not in why.inner_text()
        assert "does not fit" in page.inner_text(".verdict .tiles")
        assert "−" not in page.inner_text(".verdict .tiles")
        assert page.locator("#view h2", has_text="Nearest plans").count() == 1
        why.locator(".chip", has_text="--lora").click()
        page.locator(".verdict .tiles .state.good").wait_for(timeout=120_000)
        assert not why.is_visible()
        page.go_back()
        why.wait_for()
        assert complaints == []
        page.close()
        process.send_signal(2)
        _, said = process.communicate(timeout=120)
    assert (process.returncode, "error[MW300]" in said) == (0, True)


def test_the_command_line_of_the_browser_does_not_show_the_key(tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {shown}.part; mv {shown}.part {shown}\n')
    browser.chmod(0o700)
    command = [sys.executable, "-c", "import sys; from meshwright.cli import main; sys.exit(main())", "web"]
    settings = {**os.environ, "BROWSER": str(browser), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=settings) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert asked(url)[0] == 200
        while not shown.exists():
            time.sleep(0.02)
        file = Path(urllib.parse.unquote(urllib.parse.urlparse(shown.read_text().strip()).path))
        assert urllib.parse.urlparse(url).path.strip("/") not in shown.read_text()
        assert url in file.read_text()
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        process.send_signal(2)
        assert process.wait(120) == 0
        assert not file.parent.exists()


def test_the_file_leads_a_browser_to_the_page(browser: Shown, address: str) -> None:
    with redirect_file(address) as file:
        browser.page.goto(file.as_uri())
        browser.page.wait_for_url(address)
        browser.page.wait_for_selector("html[data-priced]", state="attached")


def test_a_fault_of_ours_and_a_server_that_ended_are_said_on_the_page(browser: Shown) -> None:
    class Faulty(PageAnswers):
        def trace(self, asked: Any) -> str:
            raise ZeroDivisionError("no schedule")

    source = page_source(WebRequest.read({"model": "gpt2", "gpus": "1xH100"}))
    page = browser.page.context.browser.new_page(viewport={"width": 1280, "height": 900})
    with served(source, Faulty()) as address:
        page.goto(f"{address}#view=timeline")
        page.wait_for_selector("html[data-priced]", state="attached")
        code, said = asked(f"{address}trace", {})
        assert (code, said["code"]) == (500, "MW100")
        assert said["problems"][0]["what"] == "ZeroDivisionError: no schedule"
        page.get_by_role("button", name="SVG", exact=True).click()
        page.locator("#view .problem", has_text="this is a bug in meshwright").wait_for()
    with served(source) as address:
        page.goto(address)
        page.wait_for_selector("html[data-priced]", state="attached")
        page.route("**/what-if", lambda route: route.abort())
        page.click("#knob-recompute-full")
        page.locator("aside .problem", has_text="the server of this page does not answer").wait_for()
        assert "start meshwright web again" in page.inner_text("aside .problem")
    page.close()


def test_a_held_slider_moves_the_picture_that_stands_there(page: Any) -> None:
    page.click("#tab-timeline")
    page.wait_for_selector("html[data-drawn^='timeline:']", state="attached")
    moved = """async (kind) => {
      const root = document.documentElement;
      const view = () => [...document.querySelectorAll("#view > div")].find((one) => one.pipeline);
      const slider = document.querySelector("aside input[type=range][id*=GEMM]");
      const [before, priced] = [view(), root.dataset.priced];
      const end_s = before.pipeline.step.end_s;
      if (kind === "input") slider.value = "0";
      slider.dispatchEvent(new Event(kind, { bubbles: true }));
      while (root.dataset.priced === priced) await new Promise((done) => setTimeout(done, 10));
      const { step } = view().pipeline;
      const rows = [...document.querySelectorAll(".pipeline-share b:first-child")].map((one) => one.textContent);
      const shown = document.querySelector(".pipeline-window").textContent;
      return { same: view() === before, longer: step.end_s > end_s, shown, rows, end_s: step.end_s };
    }"""
    held, released = page.evaluate(moved, "input"), page.evaluate(moved, "change")
    assert held["same"]
    assert held["longer"]
    assert not released["same"]
    assert (held["rows"], held["shown"], held["end_s"]) == (released["rows"], released["shown"], released["end_s"])
