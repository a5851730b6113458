"""Text programs whose output follows from their words and input: seq, basename, tr, cut, wc, expr, bc, ..."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from itertools import groupby

from meshwright.formats.shell.arithmetic import NotArithmetic, evaluate

MAX_LINES = 20_000


def printf(form: str, words: list[str]) -> str:
    """What printf prints: %s, %d, %i, %f, %x, widths and %%, repeated as long as there are words."""
    form = form.replace("\\n", "\n").replace("\\t", "\t").replace("\\\\", "\\")
    pattern = re.compile(r"%(-?0?[0-9]*(?:\.[0-9]+)?)([sdifxbq%])")
    takes = sum(match[2] != "%" for match in pattern.finditer(form))
    rest = list(words)

    def one(match: re.Match[str]) -> str:
        width, kind = match[1], match[2]
        if kind == "%":
            return "%"
        word = rest.pop(0) if rest else ""
        if len(width) > 4:
            return word
        if kind in "di":
            return f"%{width}d" % _leading(word)
        if kind == "f":
            return f"%{width}f" % float(_NUMBER.match(word)[0] or 0)  # type: ignore[index]
        if kind == "x":
            return f"%{width}x" % _leading(word)
        return f"%{width}s" % word

    out = []
    for _ in range(MAX_LINES):
        out.append(pattern.sub(one, form))
        if not rest or not takes:
            break
    return "".join(out)


_NUMBER = re.compile(r"\s*(?:[-+]?\d{1,18}(?:\.\d{0,18})?)?")


def _leading(word: str) -> int:
    """The whole number that a word begins with, as printf takes it; 0 for none."""
    return int((_NUMBER.match(word)[0] or "0").partition(".")[0] or 0)  # type: ignore[index]


def join(folder: str, path: str) -> str:
    """A path from a folder."""
    return posixpath.normpath(posixpath.join(folder, path))


def _seq(words: list[str], _: str | None) -> str | None:
    mark = "\n"
    if len(words) > 2 and words[0] == "-s":
        mark, words = words[1], words[2:]
    elif len(words) > 1 and words[0].startswith("-s"):
        mark, words = words[0][2:], words[1:]
    if not 1 <= len(words) <= 3 or not all(re.fullmatch(r"-?\d{1,9}", word) for word in words):
        return None
    numbers = [int(word) for word in words]
    first, step, last = (1, 1, numbers[0]) if len(numbers) == 1 else (numbers[0], 1, numbers[1])
    if len(numbers) == 3:
        first, step, last = numbers
    if step == 0 or abs(last - first) // abs(step) > MAX_LINES:
        return None
    found = [str(n) for n in range(first, last + (1 if step > 0 else -1), step)]
    return mark.join(found) + "\n" if found else ""


def _basename(words: list[str], _: str | None) -> str | None:
    if not words or words[0].startswith("-"):
        return None
    found = words[0].rstrip("/").rpartition("/")[2]
    if len(words) > 1 and found != words[1]:
        found = found.removesuffix(words[1])
    return found + "\n"


def _dirname(words: list[str], _: str | None) -> str | None:
    words = [word for word in words if word != "--"]
    if len(words) != 1 or words[0].startswith("-"):
        return None
    return (posixpath.dirname(words[0].rstrip("/")) or ".") + "\n"


def _realpath(words: list[str], _: str | None) -> str | None:
    if any(word.startswith(("--relative", "-q", "-z")) for word in words):
        return None
    words = [word for word in words if not word.startswith("-")]
    return posixpath.normpath(words[0]) + "\n" if len(words) == 1 and words[0] else None


def _expr(words: list[str], _: str | None) -> str | None:
    text = " ".join(words)
    if not re.fullmatch(r"[-+*/%() 0-9]+", text):
        return None
    return f"{evaluate(text, lambda _: 0)}\n"


def _bc(words: list[str], given: str | None) -> str | None:
    if words or given is None or not re.fullmatch(r"[-+*/%() 0-9\n]+", given):
        return None
    return f"{evaluate(given.strip(), lambda _: 0)}\n"


def _letters(text: str) -> str:
    text = text.replace("\\n", "\n").replace("\\t", "\t").replace("[:upper:]", "A-Z").replace("[:lower:]", "a-z")
    text = text.replace("[:space:]", " \t\n").replace("[:digit:]", "0-9")
    return re.sub(r"(\w)-(\w)", lambda m: "".join(map(chr, range(ord(m[1]), ord(m[2]) + 1))), text)


def _tr(words: list[str], given: str | None) -> str | None:
    if given is None or not words:
        return None
    flags = [word[1:] for word in words if re.fullmatch(r"-[dsc]+", word)]
    sets = [_letters(word) for word in words if not re.fullmatch(r"-[dsc]+", word)]
    if flags == ["d"] and len(sets) == 1:
        return given.translate({ord(letter): None for letter in sets[0]})
    if not flags and len(sets) == 2 and sets[1]:
        second = sets[1].ljust(len(sets[0]), sets[1][-1])
        return given.translate({ord(a): b for a, b in zip(sets[0], second, strict=False)})
    return None


def _wc(words: list[str], given: str | None) -> str | None:
    counts: dict[str, Callable[[str], int]] = {
        "-l": lambda text: text.count("\n"),
        "-w": lambda text: len(text.split()),
        "-c": lambda text: len(text.encode()),
        "-m": len,
    }
    return None if given is None or len(words) != 1 or words[0] not in counts else f"{counts[words[0]](given)}\n"


def _cut(words: list[str], given: str | None) -> str | None:
    mark, field = "\t", ""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word[:2] in ("-d", "-f") and (word[2:] or rest):
            value = word[2:] or rest.pop(0)
            mark, field = (value, field) if word[1] == "d" else (mark, value)
        else:
            return None
    if given is None or not re.fullmatch(r"[1-9]\d{0,3}", field) or len(mark) != 1:
        return None
    lines = [line.split(mark) for line in given.splitlines()]
    return "".join(
        (parts[0] if len(parts) == 1 else parts[int(field) - 1] if int(field) <= len(parts) else "") + "\n"
        for parts in lines
    )


def _head(words: list[str], given: str | None, *, last: bool = False) -> str | None:
    match = re.fullmatch(r"(?:-n ?|-)?(\d{1,5})?", " ".join(words))
    if given is None or match is None:
        return None
    count = int(match[1] or 10)
    lines = given.splitlines(keepends=True)
    return "".join(lines[max(0, len(lines) - count) :] if last else lines[:count])


def _xargs(words: list[str], given: str | None) -> str | None:
    return None if given is None or words not in ([], ["echo"]) else " ".join(given.split()) + "\n"


def _paste(words: list[str], given: str | None) -> str | None:
    """`paste -s`: the lines that come in as one."""
    text = " ".join(word for word in words if word != "-")
    match = re.fullmatch(r"-s ?(?:-d ?(.))?|-sd ?(.)|-d ?(.) ?-s", text)
    if given is None or match is None:
        return None
    return (match[1] or match[2] or match[3] or "\t").join(given.splitlines()) + "\n"


def _sort(words: list[str], given: str | None) -> str | None:
    """Plain lines in their order, as the C locale has it."""
    flags = "".join(word[1:] for word in words)
    if given is None or not all(word.startswith("-") for word in words) or not set(flags) <= set("nru"):
        return None
    lines = given.splitlines()
    if "n" in flags and not all(re.fullmatch(r"-?\d{1,9}", line) for line in lines):
        return None
    if "n" not in flags and not all(re.fullmatch(r"[0-9]*|[a-z]*", line) for line in lines):
        return None  # locales differ
    lines = sorted(dict.fromkeys(lines) if "u" in flags else lines, key=int if "n" in flags else None)
    return "".join(f"{line}\n" for line in (reversed(lines) if "r" in flags else lines))


def _uniq(words: list[str], given: str | None) -> str | None:
    if given is None or words:
        return None
    return "".join(f"{line}\n" for line, _ in groupby(given.splitlines()))


def _tac(words: list[str], given: str | None) -> str | None:
    return None if given is None or words else "".join(f"{line}\n" for line in reversed(given.splitlines()))


_PRINTS = re.compile(r"(?:NR ?== ?(\d{1,4}) ?)?\{ ?print (NF|\$NF|\$\d{1,3}) ?;? ?\}")


def _awk(words: list[str], given: str | None) -> str | None:
    """Programs that print one field of each line, or how many there are."""
    mark: str | None = None
    rest = list(words)
    while rest and rest[0].startswith("-F"):
        word = rest.pop(0)
        mark = word[2:] or (rest.pop(0) if rest else "")
    match = _PRINTS.fullmatch(rest[0].strip()) if len(rest) == 1 else None
    if given is None or match is None or (mark is not None and (len(mark) != 1 or mark in "|.*+?\\^$[]() \t")):
        return None
    found = []
    for number, line in enumerate(given.splitlines(), 1):
        if match[1] and number != int(match[1]):
            continue
        fields = line.split(mark) if line else []
        at = len(fields) if match[2] == "$NF" else int(match[2][1:]) if match[2] != "NF" else -1
        found.append(str(len(fields)) if at < 0 else line if at == 0 else fields[at - 1] if at <= len(fields) else "")
    return "".join(f"{line}\n" for line in found)


_REPLACES = re.compile(r"s([/|#,@])((?:(?!\1)[^\n])+)\1((?:(?!\1)[^&\\\n])*)\1(g?)")
_ATOM = re.compile(r"\\[.*+?$^\[\]/|{}()]|\[\^?[\w .,:;=@%/-]+\]|[\w\-:\", =/@%~#.^$*+?]")
"""What a pattern of sed is made of here: letters, `.`, classes, and what is repeated."""
_LONGEST_LINE = 8_000
"""Letters of a line in which what repeats is looked for: that takes time with their square."""


def _pattern(text: str, *, extended: bool) -> re.Pattern[str] | None:
    """A pattern of sed as one of Python, where it repeats at most one thing; None of any other."""
    parts = _ATOM.findall(text)
    if "".join(parts) != text:
        return None
    found, repeats = [], 0
    for at, part in enumerate(parts):
        plain = part[1:] if part[0] == "\\" else part
        repeat = part == "*" or (plain in ("+", "?") and (len(part) == 1) == extended)
        if repeat and parts[:at] in ([], ["^"]):
            return None  # it stands for itself, or for nothing
        if repeat:
            repeats += 1
            found.append(plain)
        elif part == "." or part[0] == "[" or (part == "^" and not at) or (part == "$" and at == len(parts) - 1):
            found.append(part)
        else:
            found.append(re.escape(plain))
    return None if repeats > 1 else re.compile("".join(found))


def _sed(words: list[str], given: str | None) -> str | None:
    """`s/pattern/other/`, one or several, of patterns that repeat little and keep nothing of what they find."""
    if (
        given is not None
        and len(words) == 2
        and words[0] == "-n"
        and (one := re.fullmatch(r"([1-9]\d{0,4})p", words[1]))
    ):
        return "".join(given.splitlines(keepends=True)[int(one[1]) - 1 : int(one[1])])
    scripts = [word for word in words if word not in ("-e", "-E", "-r")]
    found = [_REPLACES.fullmatch(part.strip()) for script in scripts for part in script.split(";")]
    if given is None or not found or any(word.startswith("-") and word not in ("-e", "-E", "-r") for word in words):
        return None
    lines = given.split("\n")
    for one in found:
        pattern = None if one is None else _pattern(one[2], extended=bool({"-E", "-r"} & {*words}))
        if one is None or pattern is None or any(len(line) > _LONGEST_LINE for line in lines):
            return None
        if one[3] and pattern.fullmatch(""):
            return None  # sed and Python differ in where they find nothing
        lines = [pattern.sub(one[3], line, count=0 if one[4] else 1) for line in lines]
    return "\n".join(lines)


_SEARCHES = re.compile(r"(\^?)([\w,:;=/ @%~#-]+)(\$?)")
"""What grep looks for, of letters that stand for themselves, at the begin or the end of a line."""


def quiet(name: str, words: list[str]) -> bool:
    """Whether a program only says whether it found something."""
    return name == "grep" and any(re.fullmatch(r"-[a-zA-Z]*q[a-zA-Z]*", word) for word in words)


def _grep(words: list[str], given: str | None) -> str | None:
    """`grep`, `grep -o` and `grep -q` of letters that stand for themselves."""
    at = next((at for at, word in enumerate(words) if word == "--" or word[:1] != "-"), len(words))
    flags, rest = "".join(word[1:] for word in words[:at]), words[at + (words[at : at + 1] == ["--"]) :]
    match = _SEARCHES.fullmatch(rest[0]) if len(rest) == 1 else None
    if given is None or match is None or not set(flags) <= set("qoFEiv") or {"o", "v"} <= set(flags):
        return None
    begin, letters, end = ("", rest[0], "") if "F" in flags else match.groups()

    def found(line: str) -> bool:
        line, wanted = (line.lower(), letters.lower()) if "i" in flags else (line, letters)
        if begin and end:
            return line == wanted
        return line.startswith(wanted) if begin else line.endswith(wanted) if end else wanted in line

    lines = [line for line in given.splitlines() if found(line) != ("v" in flags)]
    if "o" in flags:
        # What was found is printed as the line has it, which one that ignores case would have to look up.
        return None if begin or end or "i" in flags else "".join(f"{letters}\n" * line.count(letters) for line in lines)
    return "".join(f"{line}\n" for line in lines)


_OUTPUTS: dict[str, Callable[[list[str], str | None], str | None]] = {
    "seq": _seq,
    "basename": _basename,
    "dirname": _dirname,
    "realpath": _realpath,
    "readlink": _realpath,
    "expr": _expr,
    "awk": _awk,
    "grep": _grep,
    "sed": _sed,
    "bc": _bc,
    "tr": _tr,
    "wc": _wc,
    "cut": _cut,
    "head": _head,
    "paste": _paste,
    "sort": _sort,
    "uniq": _uniq,
    "tac": _tac,
    "tail": lambda words, given: _head(words, given, last=True),
    "xargs": _xargs,
    "cat": lambda words, given: given if not words or words == ["-"] else None,
    "tee": lambda words, given: given,
}
PURE = tuple(name for name in _OUTPUTS if name not in ("xargs",))
READ = frozenset(
    ("bc", "tr", "wc", "cut", "head", "tail", "cat", "tee", "awk", "grep", "sed", "paste", "sort", "uniq", "tac")
)


def output(name: str, words: list[str], given: str | None) -> str | None:
    """What a program prints; None where that is not known.

    Args:
        name: the name of the program.
        words: the words behind it.
        given: what it reads; None where that is not known.
    """
    try:
        return _OUTPUTS[name](words, given)
    except (NotArithmetic, ValueError, re.error):
        return None
