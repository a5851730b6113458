"""Names in files of others: shown whatever they hold, and neither commands to the terminal nor ways out of a folder."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.cli import main
from meshwright.errors import InputError, UnsupportedError
from meshwright.targets import TARGETS

CONFIG = {
    "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "intermediate_size": 1024, "vocab_size": 1000, "max_position_embeddings": 2048,
}  # fmt: skip
NASTY = "a\x1b]0;owned\x07\x9b31m\u202eb"
"""A title for the terminal, a colour in eight bits, and text turned around."""


def commands(text: str) -> list[str]:
    """Characters that a terminal obeys, or that turn text."""
    return [
        one for one in text if (ord(one) < 32 and one not in "\n\t") or 127 <= ord(one) < 160 or one in "\u202e\u2066"
    ]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path(f"{NASTY}.json").write_text(json.dumps(CONFIG))
    return f"./{NASTY}.json"


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "MODEL", "--gpus", "2xH100", "--gbs", "8"),
        ("plan", "MODEL", "--gpus", "2xH100", "--gbs", "8", "--json"),
        ("plan", "MODEL", "--gpus", "2xH100", "--gbs", "8", "-o", f"{NASTY}.plans"),
        ("plan", NASTY, "--gpus", f"2x{NASTY}"),
        ("estimate", "gpt2", "--gpus", "2xH100", "--plan", NASTY),
        ("models", "show", "MODEL"),
        ("check", "MODEL", "--plan", f"tp{NASTY}", "--gpus", "2xH100"),
        ("validate", f"{NASTY}.csv"),
    ],
)
def test_names_command_no_terminal(config: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    main([config if word == "MODEL" else word for word in words])
    out, err = capsys.readouterr()
    assert commands(out) == commands(err) == []
    assert "owned" in out + err
    if "--json" in words:
        assert json.loads(out)["inputs"]["model"]["name"] == NASTY


def test_exported_scripts_quote_every_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "x\n>owned\n; >owned; $(>owned) `>owned`' \""
    Path(f"{name}.json").write_text(json.dumps(CONFIG))
    best = mw.plan(f"./{name}.json", gpus="2xH100", global_batch=8).best
    scripts = []
    for target in TARGETS:
        try:
            files = best.export(target).files
        except (InputError, UnsupportedError):
            continue  # what a target cannot run is said elsewhere
        for file, text in files:
            assert ".." not in Path(file).parts
            assert not Path(file).is_absolute()
            if file.endswith(".sh"):
                scripts.append(text)
    assert scripts
    for number, text in enumerate(scripts):
        # Every command but those of the shell itself prints nothing and does nothing.
        Path(f"{number}.sh").write_text(text)
        subprocess.run(["/bin/bash", f"{number}.sh"], env={"PATH": "", "HOME": "."}, check=False, capture_output=True)
        subprocess.run(["/bin/bash", "-n", f"{number}.sh"], check=True)
    assert not Path("owned").exists()


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "a/b", "..", "a\0b", ".hidden", "-o"])
def test_a_name_of_a_model_leads_into_no_other_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    library = tmp_path / "library"
    assert main(["models", "add", str(tmp_path / "config.json"), "--library", str(library), f"--name={name}"]) == 2
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["config.json"]


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "a/b", "..", "CON/../x"])
def test_a_name_of_a_device_leads_into_no_other_folder(tmp_path: Path, name: str) -> None:
    device = Path(mw.__file__).parent / "library" / "data" / "devices" / "H100.toml"
    (tmp_path / "mine.toml").write_text(device.read_text().replace('"H100"', json.dumps(name), 1))
    library = tmp_path / "library"
    assert main(["gpus", "add", str(tmp_path / "mine.toml"), "--library", str(library)]) == 2
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["mine.toml"]
