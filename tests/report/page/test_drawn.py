"""Every view in a real browser, with real answers: what is drawn, what is logged, what the keys do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.report.page.document import page_document, palette
from meshwright.report.page.shell import page_html
from tests.report.page.chromium import Shown, chromium
from tests.report.page.sources import NAMES, source

MEASURED = Path(__file__).parents[2] / "app" / "data" / "measured_sample.csv"


@pytest.fixture(scope="module")
def shown() -> Iterator[Shown]:
    with chromium() as one:
        yield one


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name in NAMES:
        (folder / f"{name}.html").write_text(page_html(page_document(source(name)), palette()), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in NAMES}


DRAWN = {
    "timeline": "canvas.pipeline-base",
    "memory": ".memory-row",
    "cluster": ".cluster-host canvas",
    "operators": ".drawing .axis",
}


@pytest.mark.parametrize("name", NAMES)
def test_every_view_is_drawn_for_everyone_without_a_complaint(shown: Shown, files: dict[str, Path], name: str) -> None:
    # What keeps people out takes long to look for: once a view, in either scheme.
    schemes = ("light", "dark") if NAMES.index(name) % 2 else ("dark", "light")
    for scheme in schemes:
        shown.page.emulate_media(color_scheme=scheme)
        for view in page_document(source(name))["views"]:
            shown.open(files[name], view)
            shown.page.wait_for_selector(DRAWN.get(view, "#view *"))
            assert shown.page.locator("#view table").count() >= (view in DRAWN)
            if scheme == schemes[-1]:
                assert shown.serious() == []
    assert shown.complaints == []


@pytest.fixture(scope="module")
def mailed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with the log of a run and a file of measured runs."""
    folder = tmp_path_factory.mktemp("mailed")
    lines = [
        f" iteration {n:8d}/  500 | elapsed time per iteration (ms): 9000.0 | global batch size: 128 | lm loss: 1 |"
        for n in range(1, 13)
    ]
    (folder / "train.log").write_text("\n".join(lines))
    plan = mw.estimate("llama-3.1-8b", "tp2.pp2.mbs1.z1.gbs128", gpus="16xH100")
    report = mw.report(plan, with_run=folder / "train.log", measured=MEASURED)
    return report.save(folder / "report.html")


def test_a_report_that_is_mailed_holds_the_run_and_the_measured_runs(shown: Shown, mailed: Path) -> None:
    shown.open(mailed, "run")
    assert "measured 9 s per step" in shown.page.locator("#view").inner_text()
    assert "Predicted and measured" in shown.page.locator("#view").inner_text()
    shown.open(mailed, "accuracy")
    dots = shown.page.locator("#view circle")
    assert dots.count() > 5
    dots.first.focus()
    shown.page.keyboard.press("Enter")
    assert "predicted" in shown.page.locator("section[aria-live]").inner_text()
    assert shown.page.locator("#view input[type=file]").count() == 0, "nothing is dropped where nobody answers"
    assert shown.serious() == []
    assert shown.complaints == []


def test_a_file_shows_schedules_of_the_plans_sizes_beside_each_other(shown: Shown, files: dict[str, Path]) -> None:
    shown.open(files["mixed"], "playground")
    shown.page.wait_for_selector("#view canvas")
    names = shown.page.locator("#playground-name option").all_inner_texts()
    assert {"1f1b", "gpipe", "zb-h1"} <= set(names)
    assert shown.page.locator("#view input").count() == 0, "times of a file stay as they are"
    shown.page.locator("#playground-below").select_option("gpipe")
    second = shown.page.locator(".playground-shown > div:only-child > section:nth-of-type(2) h2")
    second.wait_for()
    assert second.inner_text().startswith("gpipe")
    assert shown.complaints == []


def test_a_file_draws_the_load_of_experts_and_lets_nobody_change_it(shown: Shown, files: dict[str, Path]) -> None:
    shown.open(files["experts"], "experts")
    assert shown.page.locator("#view svg.bars").count() >= 2
    assert shown.page.locator("#view input").count() == 0


def _timeline(shown: Shown, file: Path) -> None:
    shown.open(file, "timeline")
    shown.page.wait_for_selector(".toolbar .button")
    shown.evaluate("() => { window.pipeline = document.querySelector('#view > div').pipeline; }")
    shown.until("() => window.pipeline.state.frames > 0")


def test_the_timeline_has_the_tasks_of_the_schedule_and_zooms_to_one(shown: Shown, files: dict[str, Path]) -> None:
    _timeline(shown, files["mixed"])
    timeline = source("mixed").plans[0].picture().timeline
    tasks, end_s = shown.evaluate("() => [pipeline.step.count, pipeline.step.end.reduce((a, b) => Math.max(a, b))]")
    assert tasks == timeline.table.tasks
    assert end_s == pytest.approx(timeline.makespan_s)
    found = shown.evaluate("() => { pipeline.zoomTo(700); const { from, to } = pipeline.shown; return [from, to]; }")
    assert found[0] < timeline.start_s[700] < timeline.end_s[700] < found[1]
    assert found[1] - found[0] < 1.5 * (timeline.end_s[700] - timeline.start_s[700])


def test_keys_walk_along_tasks_and_say_what_they_are(shown: Shown, files: dict[str, Path]) -> None:
    _timeline(shown, files["mixed"])
    shown.page.locator(".pipeline-host").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        shown.page.keyboard.press(key)
    said = shown.page.locator("#view [aria-live]").inner_text()
    assert said.startswith("forward, micro-batch 0, stage, 1: layers 11-21")
    assert "bound by, compute" in said
    shown.page.keyboard.press("Enter")
    followed = shown.evaluate("() => pipeline.state.picked.passes.map((task) => pipeline.step.worker[task])")
    assert followed == [0, 1, 2, 3, 3, 2, 1, 0]
    shown.page.keyboard.press("c")
    assert shown.page.locator("button[aria-pressed=true]").inner_text() == "Critical path"
    shown.page.keyboard.press("w")
    assert shown.evaluate("() => pipeline.shown.to - pipeline.shown.from") < source("mixed").plans[0].picture().end_s
    shown.page.keyboard.press("Escape")
    assert shown.evaluate("() => pipeline.state.picked") is None


def test_a_narrow_map_says_below_it_which_links_its_nodes_have(shown: Shown, files: dict[str, Path]) -> None:
    shown.open(files["mixed"], "cluster")
    below = shown.page.locator("#view .on-narrow")
    assert not any(one.is_visible() for one in below.all())
    shown.page.set_viewport_size({"width": 390, "height": 900})
    try:
        assert below.first.inner_text().startswith("4 nodes of 8 H100: NVLink4 450 GB/s")
    finally:
        shown.page.set_viewport_size({"width": 1280, "height": 900})


def test_names_of_links_are_over_the_marks_of_exchanges(shown: Shown, files: dict[str, Path]) -> None:
    shown.open(files["experts"], "operators")
    parts = shown.page.locator("#view svg[aria-label*='kinds of exchange'] > *")
    names = [part.evaluate("(one) => one.tagName === 'text' && one.textContent") for part in parts.all()]
    links = [name for name in names if name]
    assert len(links) == 2
    assert names[-2:] == links
    assert links[0].startswith("NVLink")


def test_the_legend_speaks_of_numbers_where_tasks_have_theirs(shown: Shown, files: dict[str, Path]) -> None:
    shown.open(files["dense"], "timeline")
    numbers = shown.page.locator("#view .legend li", has_text="numbers: micro-batches")
    pipeline = "[...document.querySelectorAll('#view > div')].find((one) => one.pipeline).pipeline"
    shown.evaluate(f"() => {pipeline}.zoomTo(0)")
    numbers.wait_for()
    shown.evaluate(f"() => {pipeline}.show(0, {pipeline}.step.end_s)")
    narrow = shown.evaluate(
        f"() => {{ const {{ step, state }} = {pipeline}; return step.count / step.workers > state.width / 8; }}"
    )
    if narrow:
        numbers.wait_for(state="hidden")


def test_a_stage_is_chosen_and_its_parts_are_a_table(shown: Shown, files: dict[str, Path]) -> None:
    shown.open(files["mixed"], "memory")
    shown.page.locator(".memory-row").nth(1).click()
    titles = ["Over the step", "Stage 1 at its peak, by area", "Stage 1 by part"]
    assert shown.page.locator(".two h3").all_inner_texts() == titles
    assert shown.page.locator(".memory-row[aria-pressed=true]").count() == 1
    assert "memory.stage=1" in shown.page.url


def test_what_does_not_fit_is_marked_and_has_a_remedy(shown: Shown, files: dict[str, Path]) -> None:
    shown.open(files["overfull"], "memory")
    shown.page.wait_for_selector(".chip")
    assert shown.page.locator(".memory-row .beyond").count() == 2
    assert "too much" in shown.page.locator(".memory-row .size").first.inner_text()


def test_a_device_lights_the_ranks_it_talks_to(shown: Shown, files: dict[str, Path]) -> None:
    shown.open(files["experts"], "cluster")
    shown.page.wait_for_selector(".cluster-host canvas")
    assert "ep64 leaves its NVLink4 (8 links) domain of 8" in shown.page.locator(".notice").inner_text()
    found = dict(shown.evaluate("() => document.querySelector('#view > div').cluster.groups(5)"))
    assert found["tp"] == [4, 5, 6, 7]
    assert found["dp"][:3] == [1, 5, 9]
    assert found["ep"] == list(range(64))
    assert found["pp"] == [5, 517, 1029, 1541]
    shown.page.locator(".cluster-host").focus()
    for key in ("ArrowRight", "ArrowDown"):
        shown.page.keyboard.press(key)
    said = shown.page.locator("#view [aria-live]").inner_text()
    assert said.startswith("device 8, H800, node, 1 of H800, place 0, works for, stage 0")
    assert "ep, 64 ranks, 8 in its NVLink4 (8 links) domain" in said


def test_operators_of_each_device_are_sorted_by_what_they_lose(shown: Shown, files: dict[str, Path]) -> None:
    shown.open(files["mixed"], "operators")
    shown.page.get_by_role("button", name="H100", exact=True).click()
    assert shown.page.locator("#view h2").first.inner_text() == "Roofline of H100"
    head = shown.page.locator("#view th", has_text="time").first
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert "operators.group=H100" in shown.page.url


@pytest.mark.parametrize("name", ["experts", "mixed"])
def test_tables_of_a_narrow_page_need_no_scrolling_aside(shown: Shown, files: dict[str, Path], name: str) -> None:
    shown.page.set_viewport_size({"width": 390, "height": 900})
    try:
        for view in ("overview", "memory", "operators"):
            shown.open(files[name], view)
            shown.page.wait_for_selector(DRAWN.get(view, "#view table"), state="attached")
            assert shown.cut_off() == []
        step = shown.page.locator('[aria-label^="Operators on"] tbody td').nth(2)
        assert shown.evaluate("(cell) => getComputedStyle(cell, '::before').content", step.element_handle()) != "none"
        assert shown.serious() == []
    finally:
        shown.page.set_viewport_size({"width": 1280, "height": 900})


def test_words_of_plans_are_spelled_where_they_stand(shown: Shown, files: dict[str, Path]) -> None:
    shown.open(files["experts"], "why")
    words = shown.page.locator("#view dl.words")
    assert {"tpov", "epov-wgrad", "off-o", "z2"} <= set(words.locator("dt").all_inner_texts())
    assert words.locator("dt").count() == words.locator("dd").count()
    shown.page.locator(".verdict .plan button").click()
    told = shown.page.locator(".verdict .formula p").all_inner_texts()
    assert any(line.startswith("ep64 expert parallel") and "64 ranks" in line for line in told)


def test_paper_has_no_buttons(shown: Shown, files: dict[str, Path]) -> None:
    try:
        for view in ("timeline", "cluster", "playground"):
            shown.page.emulate_media(media="screen")
            shown.open(files["mixed"], view)
            shown.page.wait_for_selector("#view canvas")
            pressed = shown.page.locator("#view .toolbar, #view .playground")
            assert pressed.count()
            shown.page.emulate_media(media="print")
            assert not any(one.is_visible() for one in pressed.all())
    finally:
        shown.page.emulate_media(media="screen")
