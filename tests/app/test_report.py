"""`report`: one file that shows plans, of a question or of a plan file, with nothing in it that asks a network."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.cli import main
from meshwright.errors import InputError

MOST_BYTES = 1_500_000


def document_of(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="document">(.*?)</script>', page, re.S)
    assert found is not None
    read: dict[str, object] = json.loads(found[1])
    return read


def test_a_page_holds_its_modules_its_data_and_the_command_that_gives_it_again(tmp_path: Path) -> None:
    asked = ["report", "llama-3-8b", "--gpus", "8xH100", "--top", "2", "-o", str(tmp_path / "plan.html")]
    assert main(asked) == 0
    page = (tmp_path / "plan.html").read_text()
    held = document_of(page)
    assert held["made_by"]["command"] == "meshwright plan llama-3-8b --gpus 8xH100 --top 2"
    assert held["made_by"]["version"] == mw.__version__
    assert held["made"].startswith(f"meshwright {mw.__version__}, calibration of 20")
    assert not re.findall(r"""(?:src|href|url\()\s*=?\s*["']?https?:""", page)
    modules = json.loads(re.search(r'<script type="importmap">(.*?)</script>', page, re.S)[1])["imports"]
    imported = set(re.findall(r'"(page/[^"]+)"', page)) - {"page/main.js"}
    assert imported <= set(modules)
    assert all(address.startswith("data:text/javascript;base64,") for address in modules.values())


def test_a_plan_set_file_is_shown_as_it_was_found(tmp_path: Path) -> None:
    answer = mw.plan("llama-3-8b", gpus="8xH100", top=3)
    file = answer.save(tmp_path / "plans.json")
    shown = mw.report(str(file))
    found = document_of(shown.text)["document"]
    assert [one["title"] for one in found["plans"]] == [plan.title for plan in answer]
    assert found["search"] == answer.to_dict()["search"]
    second = document_of(mw.report(f"{file}#2").text)["document"]
    assert [one["title"] for one in second["plans"]] == [answer[1].title]


def test_a_plan_set_file_names_the_command_that_asked_for_it(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    assert main(["plan", "llama-3-8b", "--gpus", "8xH100", "--seq", "8k", "--top", "1", "-q", "-o", str(path)]) == 0
    command = "meshwright plan llama-3-8b --gpus 8xH100 --seq 8k --top 1"
    made_by = json.loads(path.read_text())["made_by"]
    assert (made_by["version"], made_by["command"]) == (mw.__version__, command)
    assert command in mw.report(path, format="md").text
    for other in (7, {"command": 7}, {}):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"made_by": other}))
        report = mw.report(path, format="md")
        assert f"meshwright report {path}" in report.text
        assert made_by["calibration"]["hash"][7:19] in report.text, "its prices are of this version's calibration"


def test_an_answer_is_handed_on() -> None:
    answer = mw.plan("llama-3-8b", gpus="8xH100", top=2)
    found = document_of(mw.report(answer).text)["document"]
    assert [one["title"] for one in found["plans"]] == [plan.title for plan in answer]
    with pytest.raises(InputError, match="gpus beside an answer"):
        mw.report(answer, gpus="16xH100")


def test_text_for_a_merge_request_has_verdict_plans_and_command() -> None:
    text = mw.report("llama-3-8b", gpus="8xH100", format="md").text
    assert text.startswith("## llama-3-8b on 8xH100\n\n**llama-3-8b on 8 H100: ")
    assert "| # | plan | step |" in text
    assert text.endswith("`meshwright plan llama-3-8b --gpus 8xH100`\n")


def test_the_name_of_a_file_says_its_format(tmp_path: Path) -> None:
    """A file called plan.md held a page of HTML."""
    asked = {"gpus": "2xH100", "global_batch": 8}
    assert mw.report("gpt2", output=tmp_path / "plan.md", **asked).format == "md"
    assert (tmp_path / "plan.md").read_text().startswith("## gpt2")
    assert mw.report("gpt2", output=tmp_path / "plan.md", format="cell", **asked).format == "cell"


def test_a_cell_is_the_fragment_that_notebooks_show() -> None:
    shown = mw.report("llama-3-8b", gpus="8xH100", format="cell")
    assert shown.text.strip() == shown._repr_html_()
    assert "<script" not in shown.text


def test_a_page_is_written_to_a_file_and_a_plan_file_has_its_own_question(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "llama-3-8b", "--gpus", "8xH100"]) == 2
    assert "-o FILE is missing" in capsys.readouterr().err
    file = mw.plan("llama-3-8b", gpus="8xH100", top=1).save(tmp_path / "plans.json")
    with pytest.raises(InputError, match="gpus beside a plan file"):
        mw.report(str(file), gpus="16xH100")


def test_a_plan_of_405b_stays_small_enough_to_mail() -> None:
    text = mw.report("llama-3.1-405b", gpus="1024xH100", top=2).text
    assert len(text.encode()) < MOST_BYTES


@pytest.mark.parametrize(("name", "fix"), [("plan.pdf", "print it"), ("plan.ipynb", "--format cell")])
def test_a_file_that_no_report_is_has_another_to_ask_for(
    name: str, fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "gpt2", "--gpus", "2xH100", "-o", name]) == 2
    said = capsys.readouterr().err
    assert f"is {name}" in said
    assert fix in said


def test_runs_are_drawn_on_a_page_alone_and_all_that_is_wrong_is_said() -> None:
    with pytest.raises(InputError) as wrong:
        mw.report("gpt2", gpus="2xH100", format="md", measured="measured.csv", framework="megatron")
    said = wrong.value.render()
    assert "measured in the form md" in said
    assert "framework without with_run" in said


def test_a_report_of_405b_with_all_its_tabs_can_be_mailed() -> None:
    measured = Path(__file__).parent / "data" / "measured_sample.csv"
    report = mw.report("llama-3.1-405b", gpus="1024xH100", measured=measured)
    views = document_of(report.text)["views"]
    assert {"timeline", "memory", "why", "operators", "playground", "accuracy"} <= set(views)
    assert report.source.command == "meshwright plan llama-3.1-405b --gpus 1024xH100"
    assert "experts" not in views, "a dense model has none"
    assert len(report.text.encode()) < 1_500_000
