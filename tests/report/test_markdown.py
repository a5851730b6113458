"""A report in Markdown holds the text of names, and nothing that a name could do there."""

from __future__ import annotations

from dataclasses import replace

from meshwright import plan
from meshwright.app.pages.source import source_of
from meshwright.report.markdown import plan_set_markdown
from meshwright.report.words.reasons import PARTS

NAME = "a`b](http://x)<img src=x onerror=y>\x1b[31m\n# c|d"


def test_names_are_text() -> None:
    source = source_of(plan("gpt2", cluster="2xH100", global_batch=8, seq_len=512, top=1), f"meshwright plan '{NAME}'")
    inputs = source.document["inputs"]
    named = {**inputs, "model": {**inputs["model"], "name": NAME}}
    document = {**source.document, "inputs": named, "warnings": [NAME]}
    text = plan_set_markdown(replace(source, document=document))
    starts = ("## ", "* warning")
    title, warning = (next(line for line in text.splitlines() if line.startswith(start)) for start in starts)
    for line in (title, warning):
        assert r"a`b]\(http://x)&lt;img src=x onerror=y>\x1b[31m # c|d" in line
    assert text.splitlines()[-1].endswith(r"`meshwright plan 'a'b](http://x)<img src=x onerror=y>\x1b[31m # c|d'`")
    assert "\n# c" not in text


def test_parts_of_the_step_are_said_as_the_verdict_says_them() -> None:
    text = plan_set_markdown(source_of(plan("gpt2", cluster="2xH100", global_batch=8, seq_len=512, top=1)))
    rows = [line.split(" | ")[0].removeprefix("| ") for line in text.splitlines() if line.startswith("| ")]
    parts = rows[rows.index("part of the step") + 1 : rows.index("stage")]
    assert set(parts) <= set(PARTS.values())
    assert "exposed gradient and weight traffic" in parts
