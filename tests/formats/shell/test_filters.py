"""What text programs print, as those of the machine print it, or nothing where that is not known."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from meshwright.formats.shell.filters import output

SED = (
    *("s/  \\+/ /g", "s/a/b/", "s/^ *//", "s/ *$//", "s/a.c/X/g", "s/[0-9]//g", "s/[^a-z]/_/g", "s/a+/P/", "s/\\./-/g"),
    *("s#/#_#g", "s/x?/y/", "s/,/ /g;s/ /-/", "s/\\$/D/", "s/=/ = /g", "s/b\\?c/Z/g", "s/^*/x/", "s/[a-c.]*/-/"),
    *('s/"/q/g', "s/*/-/g", "s/a|b/x/", "s/()/x/", "s/a*b*/x/", "s/[z-a]/x/"),
)
TEXTS = (
    *("a  b   c\n", "aaa abc a.c\n", " lead 12 3 $x a/b/c\nsecond line  \n", "no newline", "a+b a=b,c\n", "*x*\n"),
    '{"a"|b}()\n',
)


@pytest.mark.skipif(shutil.which("sed") is None, reason="there is no sed here")
@pytest.mark.parametrize("extended", [[], ["-E"]], ids=["basic", "extended"])
def test_sed_prints_what_sed_prints(extended: list[str]) -> None:
    known = 0
    for script in SED:
        for text in TEXTS:
            words = [*extended, script]
            found = output("sed", words, text)
            if found is None:
                continue
            real = subprocess.run(["sed", *words], input=text, capture_output=True, text=True, check=False)
            assert found == real.stdout, (words, text)
            known += 1
    assert known > len(TEXTS) * len(SED) // 2


def test_a_pattern_that_repeats_much_is_not_followed() -> None:
    assert output("sed", ["s/a*a*b/x/"], "a" * 5000) is None
    assert output("sed", ["s/a*b/x/"], "a" * 9000) is None
