"""Scripts as words, broken ones too."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.formats.megatron.read import read_flags
from meshwright.formats.shell import launches, read_script

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
    assert "without end" in script.broken[0][0]


@pytest.mark.parametrize(
    "text",
    [
        "while true; do A=x$A; done\n",
        "for ((i = 0; i < 10**9; i++)); do B+=($i); done\n",
        "f() { f; }\nf\n",
        "X=${X:-$(eval echo '$X$X')}\n" * 50,
        "echo {1..100000}{1..100000}\n",
        "eval " * 200 + "'A=1'\n",
        "(" * 3000 + ")" * 3000,
        "a" * 3_000_000,
        "\ue000\ue001 python x.py --a \ue000\n",
    ],
)
def test_what_never_ends_stops(text: str) -> None:
    started = time.process_time()
    script = read_script(text + "python pretrain_gpt.py --micro-batch-size 1\n")
    assert time.process_time() - started < 5
    assert script.broken or len(script.commands) >= 1


def test_files_that_source_each_other_stop() -> None:
    files = {"a.sh": ". ./b.sh\n", "b.sh": "source ./a.sh\n"}
    script = read_script("source ./a.sh\npython x.py\n", read=lambda path: files[path.removeprefix("./")])
    assert "too deeply" in script.broken[0][0]


def test_an_exit_with_an_error_is_where_a_script_stops() -> None:
    guard = 'if [ "$IMAGE" != x ]; then echo "IMAGE must be x"; exit 1; fi\n'
    script = read_script(f"#!/bin/bash\nIMAGE=y\n{guard}torchrun train.py --tp 2\n", name="run.sh")
    problem = script.stopped()
    assert problem is not None
    assert problem.what == "the script stops at run.sh:3"
    started = read_script(f"IMAGE=x\n{guard}torchrun train.py --tp 2\n")
    assert started.stopped() is None
    assert read_script("exit 0\n").stopped() is None


def test_an_option_that_a_placeholder_makes_a_file_is_told() -> None:
    """To bash `--save <a path> --fp16` reads from a file and prints to another, whose name is the next option."""
    script = read_script("torchrun pretrain_gpt.py --save <a path> --fp16 --seed 1\n", name="run.sh")
    (told,) = script.broken
    assert told[0].startswith("--fp16 is the file that is printed to")
    (started,) = launches(script.commands)
    assert [word.text for word in started.words] == ["--save", "path", "--seed", "1"]
