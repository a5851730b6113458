"""`clusters show` as a user types it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run

DATA = Path(__file__).parents[1] / "data" / "clusters"
CARD = {
    *("schema", "kind", "name", "devices", "groups", "links", "notes", "assumptions"),
    *("tolerance", "islands", "granularities"),
}


def test_a_cluster_is_shown_with_its_islands_and_what_was_assumed(run: Run) -> None:
    shown = run("clusters", "show", str(DATA / "nodes.csv"))
    assert shown.code == 0
    for words in ("3 islands", "H100-2", "measured", "assumed", "differ by up to 5%"):
        assert words in shown.out


def test_json_has_the_documented_keys_and_a_tolerance_merges(run: Run) -> None:
    document = run("clusters", "show", str(DATA / "nodes.csv"), "--tolerance", "1", "--json").document
    assert document.keys() == CARD | {"made_by"}
    assert [island["devices"] for island in document["islands"]] == [32, 8]
    assert [way["islands"] for way in document["granularities"]] == sorted(
        (way["islands"] for way in document["granularities"]), reverse=True
    )


def test_a_cluster_file_of_it_is_planned_the_same(run: Run) -> None:
    toml = run("clusters", "show", str(DATA / "sinfo.txt"), "--toml").out
    Path("cluster.toml").write_text(toml)
    first = run("clusters", "show", "cluster.toml", "--json").document
    second = run("clusters", "show", str(DATA / "sinfo.txt"), "--json").document
    assert first["groups"] == second["groups"]
    assert first["islands"] == second["islands"]


def test_a_plan_is_priced_on_what_slurm_prints(run: Run) -> None:
    Path("nodes.txt").write_text("NODELIST GRES STATE\ng[1-2] gpu:h100:8 idle\n")
    priced = run("estimate", "gpt2", "--plan", "dp16", "--cluster", "nodes.txt", "--gbs", "32", "--json").document
    assert priced["inputs"]["cluster"]["devices"] == 16
    assert any("Slurm does not say" in one["value"] for one in priced["inputs"]["assumptions"])


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("clusters", "show"), 2, "FILE is missing"),
        (("clusters", "show", "absent.csv"), 2, "there is no such file"),
        (("clusters", "show", "8xH1000"), 4, "did you mean"),
        (("clusters", "show", "8xH100", "--tolerance", "-1"), 2, "--tolerance is '-1'"),
        (("clusters", "show", "8xH100", "--tolerance", "wide"), 2, "--tolerance is 'wide'"),
        (("clusters", "shw"), 2, "shw"),
    ],
)
def test_what_cannot_be_shown_is_one_clear_error(words: tuple[str, ...], code: int, said: str, run: Run) -> None:
    refused = run(*words)
    assert refused.code == code
    assert said in refused.err
    assert not refused.out
