"""Answers as figures: every verb with a picture writes it, and the file asks nothing of any network."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.cli.conftest import Run, run

__all__ = ["run"]
NAMESPACE = "{http://www.w3.org/2000/svg}"
ASKED = {
    "estimate llama-3-8b --gpus 8xH100 --plan tp4.pp2": "Memory of tp4.pp2",
    "size gpt2 --device H100 --gbs 8 --step-time 1": "H100",
    "explain tp2.mbs1 --model gpt2 --gpus 2xH100 --gbs 8": "tp2",
    "clusters show 2x8xH100,8xA100-80": "A100-80",
    "compare tp2.mbs1 tp1.mbs1.z1 --model gpt2 --gpus 2xH100 --gbs 8": "tp2",
    "schedule 1f1b --p 2 --m 4": "1f1b",
}


@pytest.mark.parametrize("line", ASKED)
def test_a_verb_with_a_picture_writes_it(run: Run, tmp_path: Path, line: str) -> None:
    ran = run(*line.split(), "--svg", "figure.svg")
    assert ran.code == 0, ran.err
    assert ran.err.count("figure written to figure.svg") == 1
    text = (tmp_path / "figure.svg").read_text()
    words = "".join(ET.fromstring(text).itertext()).replace("\xa0", " ")
    assert ASKED[line] in words
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) == {"http://www.w3.org/2000/svg"}
    again = run(*line.split(), "--svg", "again.svg", "--json")
    assert again.document["schema"]
    assert (tmp_path / "again.svg").read_text() == text, "equal questions give equal files"
