"""Text of others: what it says, or one error, within a bounded time."""

from __future__ import annotations

import pytest

from meshwright.errors import InputError
from meshwright.formats.files import MOST_VALUES, parsed

FOLDED = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
FOLDED += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]


def test_aliases_are_read() -> None:
    assert parsed("a: &a {b: 1}\nc: *a\nd: [*a, *a]", "YAML", "file") == {
        "a": {"b": 1},
        "c": {"b": 1},
        "d": [{"b": 1}] * 2,
    }
    assert parsed("a: &a 1\nb: {<<: {c: *a}}", "YAML", "file") == {"a": 1, "b": {"c": 1}}


def test_aliases_of_aliases_that_stand_for_more_than_fits_are_refused() -> None:
    with pytest.raises(InputError) as refused:
        parsed("\n".join(FOLDED), "YAML", "file")
    assert f"{MOST_VALUES:,}" in refused.value.problems[0].why
    parsed("\n".join(FOLDED[:5]), "YAML", "file")


@pytest.mark.parametrize("text", ["a: &a {b: *a}", "&a [*a]", "a: &a [1, {b: [*a]}]"])
def test_an_alias_within_what_it_names_is_refused(text: str) -> None:
    with pytest.raises(InputError) as refused:
        parsed(text, "YAML", "file")
    assert "an alias stands within what it names" in refused.value.problems[0].why


@pytest.mark.parametrize(
    "text", ["!!bool maybe", '!!int ""', '!!float ""', "!!timestamp soon", "!!int 0x", "2001-99-99", "!!python/name:os"]
)
def test_a_value_that_does_not_suit_its_tag_is_a_wrong_file(text: str) -> None:
    with pytest.raises(InputError, match="not valid YAML"):
        parsed(f"a: {text}", "YAML", "file")


@pytest.mark.parametrize(
    ("language", "text"), [("JSON", "[" * 100_000), ("TOML", "a = " + "[" * 100_000), ("YAML", "[" * 5_000)]
)
def test_deep_nesting_is_a_wrong_file(language: str, text: str) -> None:
    with pytest.raises(InputError, match=f"not valid {language}"):
        parsed(text, language, "file")
