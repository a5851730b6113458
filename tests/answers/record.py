"""Records answers anew, or shows how they differ from the recorded ones.

    python -m tests.answers.record                         # all of them
    python -m tests.answers.record replan "schedule best"  # lines with any of these words in them
    python -m tests.answers.record --check                 # ask all, show differences and seconds, write nothing

Differences that `corrections.toml` explains are not shown.

A recording is what later code is held against: record a question anew only when it is new or was wrong, and say why in
the commit.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.answers.ask import Answer, ask
from tests.answers.questions import QUESTIONS, verb_of
from tests.answers.recording import read_corrections, read_recording, unexplained, write_recording


def main() -> int:
    """Ask, show what changed and how long it took, and write."""
    parser = argparse.ArgumentParser(prog="python -m tests.answers.record")
    parser.add_argument("words", nargs="*", help="only lines with one of these in them")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where something differs")
    parser.add_argument("--slowest", type=int, default=0, metavar="N", help="show the N slowest questions")
    options = parser.parse_args()
    lines = [line for line in QUESTIONS if not options.words or any(word in line for word in options.words)]
    recorded, corrections = read_recording(), read_corrections()
    found: dict[str, Answer] = {}
    seconds: dict[str, float] = {}
    changed = 0
    with tempfile.TemporaryDirectory() as folder:
        for line in lines:
            began = time.process_time()
            found[line] = ask(line, Path(folder))
            seconds[line] = time.process_time() - began
            if line not in recorded:
                print(f"{line}\n  is new", flush=True)
            elif apart := unexplained(line, recorded[line], found[line], corrections):
                changed += 1
                print("\n  ".join([line, *map(str, apart)]), flush=True)
    _show_seconds(seconds, options.slowest)
    print(f"{changed} differ from the recording")
    if not options.check:
        answers = recorded | found
        write_recording({line: answers[line] for line in QUESTIONS if line in answers})
    return int(options.check and changed > 0)


def _show_seconds(seconds: dict[str, float], slowest: int) -> None:
    for verb, number in Counter(map(verb_of, seconds)).most_common():
        spent = sum(taken for line, taken in seconds.items() if verb_of(line) == verb)
        print(f"{number:4d} {verb:20} {spent:7.1f} s")
    print(f"{len(seconds):4d} {'in all':20} {sum(seconds.values()):7.1f} s")
    for line in sorted(seconds, key=lambda line: -seconds[line])[:slowest]:
        print(f"{seconds[line]:7.2f} s  {line}")


if __name__ == "__main__":
    raise SystemExit(main())
