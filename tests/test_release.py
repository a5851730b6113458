"""The steps that a release is tried with end here as they have to end there."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from meshwright.cli import main
from release.check import BILL, STEPS, wrong_tag
from release.sign import PURPOSE, SUMS, checksums, sign

ROOT = Path(__file__).parents[1]

QUICK = [(code, words) for code, words in STEPS if "64xH100,64xA100-80" not in words]
"""All but a search over two kinds of device, which other tests make."""


def test_the_steps_of_a_release_end_with_their_exit_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert {" ".join(words): main(words) for _, words in QUICK} == {" ".join(words): code for code, words in QUICK}


def test_the_conda_recipe_asks_for_what_the_wheel_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = (ROOT / "release" / "conda" / "recipe.yaml").read_text()
    run = recipe.partition("  run:\n")[2].partition("\n\n")[0]
    asked = {line.strip().removeprefix("- ").replace(" ", "") for line in run.splitlines()}
    assert asked == {f"python{project['requires-python']}", *project["dependencies"]}
    assert f'version: "{project["version"]}"' in recipe
    assert f"meshwright = {project['scripts']['meshwright']}" in recipe


def test_the_image_holds_what_the_wheel_is_built_from_and_starts_with_a_verb() -> None:
    image = (ROOT / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (.+) \S+$", image, flags=re.MULTILINE)
    assert all((ROOT / name).exists() for line in copied for name in line.split())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"pyproject.toml", "hatch_build.py", project["readme"], *project["license-files"], "src"} <= set(
        " ".join(copied).split()
    )


@pytest.mark.parametrize(("tag", "wrong"), [(None, False), ("v1.2.3", False), ("v1.2.4", True)])
def test_a_tag_of_another_version_is_no_release(tag: str | None, wrong: bool, tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"], *([["tag", tag]] if tag else [])):
        subprocess.run([*git, *words], check=True)
    assert bool(wrong_tag(tmp_path, Path("meshwright-1.2.3-py3-none-any.whl"))) == wrong


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH signs releases")
def test_a_signature_holds_for_the_file_that_was_signed_alone(tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key, "-C", "release"], check=True)
    for name in ("meshwright-1.0-py3-none-any.whl", "meshwright-1.0.tar.gz", BILL):
        (tmp_path / name).write_text(name)
    sums = checksums(tmp_path)
    sign(sums, key)
    (tmp_path / "signers").write_text(f"release {key.with_suffix('.pub').read_text()}")

    def holds() -> bool:
        verify = ["ssh-keygen", "-Y", "verify", "-f", "signers", "-I", "release", "-n", PURPOSE, "-s", f"{SUMS}.sig"]
        return not subprocess.run(verify, cwd=tmp_path, input=sums.read_bytes(), capture_output=True).returncode

    def same() -> bool:
        return not subprocess.run(["sha256sum", "-c", "--quiet", SUMS], cwd=tmp_path, capture_output=True).returncode

    assert holds()
    assert same()
    (tmp_path / BILL).write_text("another bill")
    assert not same()
    sums.write_text(sums.read_text().replace("0", "1"))
    assert not holds()
