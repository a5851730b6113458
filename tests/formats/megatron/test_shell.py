"""Scripts as words, broken ones too."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshwright.formats.megatron import read_flags
from meshwright.formats.megatron.shell import read_script

pieces = st.sampled_from(
    [
        "--",
        "$A",
        "${A:-",
        "$((",
        "(",
        ")",
        '"',
        "'",
        "\\",
        "`",
        "A=$A$A",
        "\n",
        "#",
        "--tp",
        "x.py ",
        "--num-layers ",
        "9",
    ]
)


@given(st.lists(pieces, max_size=40).map("".join))
def test_broken_scripts_are_read_without_an_exception(text: str) -> None:
    read_flags(text)
    read_flags(text, devices=8)


def test_variables_that_grow_without_end_stop() -> None:
    script = read_script("A=xxxxxxxxxx\n" + "A=$A$A\n" * 60)
    assert "without end" in script.broken
