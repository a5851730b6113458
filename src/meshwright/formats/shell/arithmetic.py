"""Whole-number arithmetic as `$((...))` means it."""

from __future__ import annotations

import re
from collections.abc import Callable

_TOKEN = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|[0-9]+(?:#[0-9a-zA-Z]+)?)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<mark>\*\*|<<=|>>=|<<|>>|<=|>=|==|!=|&&|\|\||\+\+|--|[-+*/%&|^]=|[-+*/%<>=!~&|^?:(),]))"
)
_LEVELS = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<=", ">=", "<", ">"),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)
_ASSIGNS = ("=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "|=", "^=")
MAX_TOKENS = 2_000
_WRAP = 1 << 64


class NotArithmetic(ValueError):
    """Text that is no arithmetic, or has no value."""


def evaluate(text: str, value_of: Callable[[str], int], assign: Callable[[str, int], None] | None = None) -> int:
    """The value of an expression.

    Args:
        text: the text with its `$NAME` filled in; bare names are looked up.
        value_of: the number a name stands for.
        assign: takes what `=`, `+=` and `++` set; None where nothing may be set.

    Raises:
        NotArithmetic: it does not parse, or divides by zero.
    """
    tokens: list[tuple[str, str]] = []
    at, text = 0, text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or len(tokens) > MAX_TOKENS:
            raise NotArithmetic(text[:80])
        tokens.append((str(match.lastgroup), match[str(match.lastgroup)]))
        at = match.end()
    if not tokens:
        return 0
    parser = _Parser(tokens, value_of, assign)
    try:
        found = parser.comma()
    except RecursionError:
        raise NotArithmetic("it is nested too deeply") from None
    if parser.at != len(tokens):
        raise NotArithmetic(text[:80])
    return found


class _Parser:
    def __init__(
        self, tokens: list[tuple[str, str]], value_of: Callable[[str], int], assign: Callable[[str, int], None] | None
    ) -> None:
        self.tokens, self.value_of, self.assign, self.at = tokens, value_of, assign, 0
        self.dead = 0
        """Depth of ways not taken: their names are not looked up and nothing is set."""

    def peek(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.tokens[at][1] if at < len(self.tokens) else ""

    def take(self, mark: str) -> None:
        if self.peek() != mark:
            raise NotArithmetic(f"{mark} is missing")
        self.at += 1

    def comma(self) -> int:
        found = self.assignment()
        while self.peek() == ",":
            self.at += 1
            found = self.assignment()
        return found

    def assignment(self) -> int:
        if self.at < len(self.tokens) and self.tokens[self.at][0] == "name" and self.peek(1) in _ASSIGNS:
            name, mark = self.peek(), self.peek(1)
            self.at += 2
            value = self.assignment()
            if mark != "=":
                value = self.binary_value(mark[:-1], self.name(name), value)
            self.set(name, value)
            return value
        return self.ternary()

    def ternary(self) -> int:
        condition = self.binary(0)
        if self.peek() != "?":
            return condition
        self.at += 1
        self.dead += not condition
        first = self.assignment()
        self.dead += bool(condition) - (not condition)
        self.take(":")
        second = self.assignment()
        self.dead -= bool(condition)
        return first if condition else second

    def binary(self, level: int) -> int:
        if level == len(_LEVELS):
            return self.power()
        left = self.binary(level + 1)
        while self.peek() in _LEVELS[level]:
            mark = self.peek()
            self.at += 1
            settled = (mark == "&&" and not left) or (mark == "||" and bool(left))
            self.dead += settled
            right = self.binary(level + 1)
            self.dead -= settled
            left = self.binary_value(mark, left, right)
        return left

    def binary_value(self, mark: str, left: int, right: int) -> int:
        if mark in ("/", "%"):
            if right == 0:
                if self.dead:
                    return 0
                raise NotArithmetic("a division by zero")
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            return quotient if mark == "/" else left - quotient * right
        if mark in ("<<", ">>"):
            right &= 63
        values: dict[str, Callable[[], int]] = {
            "+": lambda: left + right,
            "-": lambda: left - right,
            "*": lambda: left * right,
            "<<": lambda: left << right,
            ">>": lambda: left >> right,
            "<": lambda: left < right,
            ">": lambda: left > right,
            "<=": lambda: left <= right,
            ">=": lambda: left >= right,
            "==": lambda: left == right,
            "!=": lambda: left != right,
            "&": lambda: left & right,
            "^": lambda: left ^ right,
            "|": lambda: left | right,
            "&&": lambda: bool(left) and bool(right),
            "||": lambda: bool(left) or bool(right),
        }
        return _wrapped(int(values[mark]()))

    def power(self) -> int:
        base = self.unary()
        if self.peek() != "**":
            return base
        self.at += 1
        exponent = self.power()
        if exponent < 0:
            raise NotArithmetic("a negative exponent")
        return _wrapped(pow(base % _WRAP, exponent, _WRAP))

    def unary(self) -> int:
        mark = self.peek()
        if mark in ("-", "+", "!", "~"):
            self.at += 1
            value = self.unary()
            return {"-": -value, "+": value, "!": int(not value), "~": ~value}[mark]
        if mark in ("++", "--"):
            name = self.peek(1)
            self.at += 2
            value = self.name(name) + (1 if mark == "++" else -1)
            self.set(name, value)
            return value
        return self.atom()

    def atom(self) -> int:
        if self.at >= len(self.tokens):
            raise NotArithmetic("it ends too early")
        kind, text = self.tokens[self.at]
        self.at += 1
        if kind == "number":
            return _number(text)
        if kind == "name":
            if self.peek() in ("++", "--"):
                value = self.name(text)
                self.set(text, value + (1 if self.peek() == "++" else -1))
                self.at += 1
                return value
            return self.name(text)
        if text == "(":
            value = self.comma()
            self.take(")")
            return value
        raise NotArithmetic(f"{text} is where a number should be")

    def name(self, name: str) -> int:
        return 0 if self.dead else self.value_of(name)

    def set(self, name: str, value: int) -> None:
        if self.assign is None or not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise NotArithmetic("nothing may be set here")
        if not self.dead:
            self.assign(name, value)


def _wrapped(value: int) -> int:
    return (value + _WRAP // 2) % _WRAP - _WRAP // 2


def _number(text: str) -> int:
    if len(text) > (80 if "#" in text else 40):
        raise NotArithmetic("a number is too long")
    if "#" in text:
        base, digits = text.split("#")
        if not 2 <= int(base) <= 36:
            raise NotArithmetic(f"base {base[:8]}")
        try:
            return _wrapped(int(digits, int(base)))
        except ValueError:
            raise NotArithmetic(text[:80]) from None
    try:
        return _wrapped(int(text, 16) if text[:2] in ("0x", "0X") else int(text, 8) if text[0] == "0" else int(text))
    except ValueError:
        raise NotArithmetic(f"{text[:40]} is no octal number") from None
