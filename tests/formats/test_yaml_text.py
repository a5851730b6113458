"""YAML is read alike by libyaml and by PyYAML's own scanner, whichever a machine has."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshwright.formats.key_text import key_text
from meshwright.formats.yaml_text import quick_loader, yaml_values

yaml = pytest.importorskip("yaml")

PIECES = (
    *(
        "a: 1\n",
        "b:\n  c: [1, 2.5, x]\n",
        "- d: e\n",
        "  - f\n",
        "k: 'it''s'\n",
        'q: "\\n\\u00e9"\n',
        "n: ~\n",
        "y: yes\n",
    ),
    *(
        "o: 0o17\n",
        "h: 0x1F\n",
        "s: 12:30\n",
        "e: 1e3\n",
        "u: 1_000\n",
        "t: 2026-11-30\n",
        "m: |\n  x\n   y\n",
        "f: >-\n  x\n",
    ),
    *(
        "r: &r {z: 1}\n",
        "v: *r\n",
        "<<: *r\n",
        "---\n",
        "...\n",
        "# note\n",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "-",
        "?",
        "!",
        "&",
        "*",
    ),
    *(
        "|",
        ">",
        "%",
        "@",
        "`",
        '"',
        "'",
        "#",
        " ",
        "\t",
        "\n",
        "\r",
        "\x07",
        "\x85",
        "\ufeff",
        "\u2028",
        "é",
        "😀",
        "!!int ",
        "!!x ",
    ),
)


def read(text: str) -> tuple[str, Any]:
    """What text holds, or why it is refused."""
    try:
        return "holds", yaml_values(text, "a file")
    except (ValueError, RecursionError) as error:
        return type(error).__name__, str(error)


def places(text: str) -> object:
    """Where each key of a table stands and ends."""
    if not isinstance(read(text)[1], dict):
        return None
    found = key_text("x.yaml", text)
    return found and found.entries


@given(pieces=st.lists(st.sampled_from(PIECES), max_size=12))
@example(pieces=["a: [b?c]\n"])
@example(pieces=["a:\tb\n"])
@example(pieces=["a: !\n"])
@example(pieces=["m: |# note\n  x\n"])
def test_both_readers_read_alike_and_refuse_in_the_same_words(pieces: list[str]) -> None:
    text = "".join(pieces)
    if quick_loader() is None:
        pytest.skip("PyYAML has no libyaml here")
    found = read(text), places(text)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("meshwright.formats.yaml_text.quick_loader", lambda: None)
        assert repr(found) == repr((read(text), places(text)))


@pytest.mark.parametrize("quick", [True, False])
def test_depth_and_aliases_have_a_limit_in_both(quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not quick:
        monkeypatch.setattr("meshwright.formats.yaml_text.quick_loader", lambda: None)
    assert read("[" * 100_000)[0] in ("ValueError", "RecursionError")
    assert read("- " * 5_000 + "x")[0] == "RecursionError"
    doubled = "".join(f"a{level}: &a{level} [*a{level - 1}, *a{level - 1}]\n" for level in range(1, 40))
    assert "aliases stand for more than" in read(f"a0: &a0 x\n{doubled}")[1]
    assert read("a: &a [*a]\n") == ("ValueError", "an alias is inside what it names")


def test_values_are_those_of_yaml_1_1() -> None:
    found = read("a: yes\nb: 1e3\nc: 1.0e+3\nd: .inf\ne: 0x10\nf:\n")[1]
    assert found == {"a": True, "b": "1e3", "c": 1e3, "d": math.inf, "e": 16, "f": None}
