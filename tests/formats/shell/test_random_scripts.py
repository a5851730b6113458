"""Scripts put together at random from what launch scripts are made of, against bash itself."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from benchmarks.recording import record, recorders
from meshwright.formats.shell import launches, read_script

NAMES = "ABCDE"
VALUES = ("1", "8", "x", "two words", "", "a=b", "--flag", "--k v", "7b", "a.b-c", "3 4")
START = "A=1\nB='7b x'\nC=\nD=abc\nE=8\nARR=(k 'l m')\n"
SCRIPTS = 120


def expansion(some: random.Random) -> str:
    name = some.choice(NAMES)
    return some.choice(
        (
            *(f"${name}", f"${{{name}}}", f'"${name}"', f"${{{name}:-d}}", f'"${{{name}:-d e}}"', f"${{{name}:+p}}"),
            *(f"${{#{name}}}", f"${{{name}%%b*}}", f"${{{name}#*=}}", f"${{{name}/a/Z}}", f'"${{{name}//o/0}}"'),
            *(f"${{{name}^^}}", f"${{{name}:1:2}}", f"$((${{#{name}}}+2))", f'"$(echo "${name}" x)"', f"'${name}'"),
            *(f"\\${name}", f"${{{name}-u}}", '"${ARR[@]}"', "${ARR[@]}", '"${ARR[*]}"', "${ARR[1]}", "${#ARR[@]}"),
            *("$#", '"$@"', "$1", "${2:-z}"),
        )
    )


def condition(some: random.Random) -> str:
    name = some.choice(NAMES)
    return some.choice(
        (
            *(f'[ "${name}" = 1 ]', f'[ -z "${name}" ]', f"[[ ${name} == *b* ]]", f'! [ "${name}" = 8 ]'),
            *(f"[[ -n ${name} && ${name} != x ]]", f'[ "${name}" != x -a -n "${name}" ]', f'test "${name}" = ""'),
            *(f'[[ "${name}" =~ ^[0-9]+$ ]]', f"[[ ! ${name} == 8 || ${name} == a* ]]", f"(( ${{#{name}}} > 2 ))"),
            *(f"[ ${{#{name}}} -gt 1 ]", f'[[ ( ${name} == 1 ) || "${name}" == "x" ]]', f'[ "x${name}" = "x" ]'),
        )
    )


def statement(some: random.Random, depth: int = 0) -> str:
    name, kind = some.choice(NAMES), some.randint(0, 12 if depth < 3 else 8)
    if kind == 0:
        return f"{name}='{some.choice(VALUES)}'"
    if kind == 1:
        return f'{name}+=" {some.choice(VALUES)}"'
    if kind == 2:
        return f'{name}="{expansion(some).replace(chr(34), "")}"'
    if kind == 3:
        return f"ARR+=({expansion(some)} {expansion(some)})"
    if kind == 4:
        return f"{condition(some)} && {name}={some.randint(0, 9)} || {name}=n"
    if kind == 5:
        return f"n=0; while [ $n -lt {some.randint(0, 3)} ]; do n=$((n+1)); ARR+=($n); done"
    if kind == 6:
        return f"{name}=$(cat <<EOF\n{some.choice(('', ' '))}${some.choice(NAMES)} {some.choice(VALUES)}\nEOF\n)"
    if kind == 7:
        return f'set -- {expansion(some)} "$@"'
    if kind == 8:
        return f'IFS=, read -r {name} E <<< "a,{some.choice(VALUES)},c"'
    inner = [statement(some, depth + 1) for _ in range(4)]
    if kind == 9:
        return f"if {condition(some)}; then\n{inner[0]}\nelse\n{inner[1]}\nfi"
    if kind == 10:
        first, second, third, fourth = inner
        return f'case ${name} in\n 1|x) {first} ;;\n *b*) {second} ;;\n "") {third};;\n *) {fourth}\nesac'
    if kind == 11:
        return f'for i in {expansion(some)} q; do {name}="${name}$i"; {inner[0]}; done'
    return f'f{depth}() {{ local {name}=$1; ARR+=("$@" "${name}"); }}\nf{depth} {expansion(some)} {expansion(some)}'


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_random_scripts_start_what_bash_starts(tmp_path: Path) -> None:
    programs = recorders(tmp_path)
    tree = tmp_path / "tree"
    tree.mkdir()
    sure = 0
    for seed in range(SCRIPTS):
        some = random.Random(seed)
        body = "\n".join(statement(some) for _ in range(some.randint(2, 6)))
        last = f'python x.py {expansion(some)} {expansion(some)} $A "$B" $C "$D" "${{ARR[@]}}" END'
        text = f"{START}{body}\n{last}\n"
        (tree / "run.sh").write_text(text)
        found = read_script(text, name="run.sh", arguments=["p", "q r"])
        commands = launches(found.commands)
        if found.broken or any(word.unknown for launch in commands for word in launch.words):
            continue
        sure += 1
        run = record(tree, "run.sh", arguments=["p", "q r"], programs=programs, sealed=False)
        assert [[word.text for word in launch.words] for launch in commands] == run.python_words(), text
    assert sure >= 0.8 * SCRIPTS
