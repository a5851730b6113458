"""What a step does to Python beside computing: an error with its line, or no word where it is harmless."""

from __future__ import annotations

import logging
import pprint
import sys
import sysconfig
import types
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshwright.compiler.tracing.trace import trace_step
from meshwright.errors import InputError

WEIGHTS = jnp.ones((3, 2))
BATCH = jnp.ones((8, 3))
KEPT: list[Any] = []
BY_NAME: dict[str, Any] = {}
MASKS: dict[int, Any] = {}
LAST: Any = None
CALLS = 0
RATE = 0.1


def loss(w: jax.Array, x: jax.Array) -> jax.Array:
    return (x @ w).mean()


def prints(w: jax.Array, x: jax.Array) -> jax.Array:
    value, gradient = jax.value_and_grad(loss)(w, x)
    print("loss", value)  # here
    return w - gradient


def prints_a_setting(w: jax.Array, x: jax.Array) -> jax.Array:
    print("compiling for", x.shape, file=sys.stderr)  # here
    return w - jax.grad(loss)(w, x)


def prints_prettily_inside_of_the_loss(w: jax.Array, x: jax.Array) -> jax.Array:
    def told(w: jax.Array, x: jax.Array) -> jax.Array:
        value = loss(w, x)
        pprint.pprint({"loss": value})  # here
        return value

    return w - jax.grad(told)(w, x)


def logs_a_traced_value(w: jax.Array, x: jax.Array) -> jax.Array:
    value, gradient = jax.value_and_grad(loss)(w, x)
    shown = logging.Logger("steps")
    shown.addHandler(logging.StreamHandler())
    shown.warning("loss %s", value)  # here
    return w - gradient


@partial(jax.jit, donate_argnums=0)
def prints_under_jit(w: jax.Array, x: jax.Array) -> jax.Array:
    print("loss", loss(w, x))  # here
    return w - jax.grad(loss)(w, x)


def keeps_in_a_list(w: jax.Array, x: jax.Array) -> jax.Array:
    value, gradient = jax.value_and_grad(loss)(w, x)  # here
    KEPT.append(value)
    return w - gradient


def keeps_in_a_dictionary(w: jax.Array, x: jax.Array) -> jax.Array:
    def told(w: jax.Array, x: jax.Array) -> jax.Array:
        BY_NAME["hidden"] = jnp.tanh(x @ w)  # here
        return BY_NAME["hidden"].mean()

    return w - jax.grad(told)(w, x)


def keeps_in_a_global(w: jax.Array, x: jax.Array) -> jax.Array:
    global LAST
    LAST, gradient = jax.value_and_grad(loss)(w, x)  # here
    return w - gradient


def keeps_rounds_of_a_scan(w: jax.Array, x: jax.Array) -> jax.Array:
    def round_(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
        carry = jnp.tanh(carry) + w[0, 0]  # here
        KEPT.append(carry)
        return carry, None

    return w - jax.grad(lambda w, x: jax.lax.scan(round_, loss(w, x), None, length=2)[0])(w, x)


class Trainer:
    def __init__(self) -> None:
        self.last: Any = None
        self.calls = 0
        self.rate = 0.1

    def keeps(self, w: jax.Array, x: jax.Array) -> jax.Array:
        self.last, gradient = jax.value_and_grad(loss)(w, x)  # here
        return w - gradient

    def counts(self, w: jax.Array, x: jax.Array) -> jax.Array:
        self.calls += 1  # here
        return w - jax.grad(loss)(w, x)


def keeping_around() -> Callable[..., Any]:
    history = []

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        value, gradient = jax.value_and_grad(loss)(w, x)  # here
        history.append(value)
        return w - gradient

    return step


def counts(w: jax.Array, x: jax.Array) -> jax.Array:
    global CALLS
    CALLS += 1  # here
    return w - jax.grad(loss)(w, x)


def appends_numbers(w: jax.Array, x: jax.Array) -> jax.Array:
    KEPT.append(0.5)  # here
    return w - jax.grad(loss)(w, x)


@jax.jit  # type: ignore[untyped-decorator]
def counts_under_jit(w: jax.Array, x: jax.Array) -> jax.Array:
    KEPT.append(0.5)
    return w - len(KEPT) * jax.grad(loss)(w, x)  # here


def line_in(fun: Any) -> int:
    """The line marked with `# here`."""
    plain = getattr(fun, "__wrapped__", fun)
    lines = Path(__file__).read_text().splitlines()
    first: int = plain.__code__.co_firstlineno
    return next(number for number in range(first, len(lines) + 1) if lines[number - 1].endswith("# here"))


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (prints, "prints (loss"),
        (prints_a_setting, "prints (compiling for (8, 3))"),
        (prints_prettily_inside_of_the_loss, "prints ({'loss': "),
        (logs_a_traced_value, "prints (loss "),
        (prints_under_jit, "prints (loss"),
        (keeps_in_a_list, "keeps a traced value in the global KEPT"),
        (keeps_in_a_dictionary, "keeps a traced value in the global BY_NAME"),
        (keeps_in_a_global, "keeps a traced value in the global LAST"),
        (keeps_rounds_of_a_scan, "keeps a traced value in the global KEPT"),
        (Trainer().keeps, "keeps a traced value in last of Trainer"),
        (keeping_around(), "keeps a traced value in history around step"),
        (counts, "changes Python's state: CALLS was"),
        (Trainer().counts, "changes Python's state: self.calls was 1 and is 2"),
        (appends_numbers, "changes Python's state: KEPT had"),
        (counts_under_jit, "computes something else each time it is traced"),
    ],
)
def test_what_a_step_does_to_python_is_one_error_with_its_line(step: Any, words: str) -> None:
    global LAST
    with pytest.raises(InputError) as raised:
        trace_step(step, (WEIGHTS, BATCH))
    said = str(raised.value)
    KEPT.clear()
    BY_NAME.clear()
    LAST = None
    assert words in said
    assert f"tests/compiler/python_effects/test_refusals.py:{line_in(step)} (" in said
    assert all(problem.fix for problem in raised.value.problems)


def asks_for_the_item(w: jax.Array, x: jax.Array) -> Any:
    value, gradient = jax.value_and_grad(loss)(w, x)
    return w - gradient, value.item()  # here


def formats(w: jax.Array, x: jax.Array) -> Any:
    value, gradient = jax.value_and_grad(loss)(w, x)
    return w - gradient, len(f"{value:.3f}")  # here


def branches(w: jax.Array, x: jax.Array) -> Any:
    value, gradient = jax.value_and_grad(loss)(w, x)
    return w if value > 3 else w - gradient  # here


def chooses_samples(w: jax.Array, x: jax.Array) -> Any:
    return w - jax.grad(lambda w: (x @ w)[x[:, 0] > 0].mean())(w)  # here


def assigns(w: jax.Array, x: jax.Array) -> Any:
    w[0] = 0.0  # here
    return w - jax.grad(loss)(w, x)


def has_a_loss_of_every_sample(w: jax.Array, x: jax.Array) -> Any:
    return w - jax.grad(lambda w: (x @ w).mean(1))(w)  # here


def forgets_what_stands_beside_the_loss(w: jax.Array, x: jax.Array) -> Any:
    return w - jax.grad(lambda w: ((x @ w).mean(), x))(w)  # here


def mixes_up_shapes(w: jax.Array, x: jax.Array) -> Any:
    return w - jax.grad(lambda w: (x @ w.T).mean())(w)  # here


def draws_by_numpy(w: jax.Array, x: jax.Array) -> Any:
    kept = np.random.random(x.shape) > 0.5
    return w - jax.grad(loss)(w, x * kept)  # here


@pytest.mark.parametrize(
    ("step", "fix"),
    [
        (asks_for_the_item, "call .item() on what the step returns"),
        (formats, "jax.debug.print('{x}', x=value)"),
        (branches, "jax.numpy.where"),
        (chooses_samples, "jax.numpy.where(mask, values, 0).sum() / mask.sum()"),
        (assigns, "array.at[index].set(value)"),
        (has_a_loss_of_every_sample, "losses.mean()"),
        (forgets_what_stands_beside_the_loss, "has_aux=True"),
        (mixes_up_shapes, "jax.tree.map(jax.numpy.shape, arguments)"),
        (draws_by_numpy, "draw random numbers with jax.random"),
    ],
)
def test_what_cannot_be_traced_is_told_with_its_line_and_what_to_write(step: Any, fix: str) -> None:
    with pytest.raises(InputError) as raised:
        trace_step(step, (WEIGHTS, BATCH))
    (problem,) = raised.value.problems
    assert f"tests/compiler/python_effects/test_refusals.py:{line_in(step)} (" in problem.what
    assert fix in problem.fix


def measures_itself(w: jax.Array, x: jax.Array) -> Any:
    return w - jax.grad(loss)(w, x), np.random.random()


def test_a_number_of_python_that_a_step_returns_is_another_each_time() -> None:
    with pytest.raises(InputError, match="each time it is traced: a number of Python that it returns differs"):
        trace_step(measures_itself, (WEIGHTS, BATCH))


def test_a_step_that_returns_nothing_is_told() -> None:
    with pytest.raises(InputError, match="returns nothing") as raised:
        trace_step(lambda w, x: None, (WEIGHTS, BATCH))
    assert "return params" in raised.value.problems[0].fix


def test_prints_and_kept_values_are_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    def both(w: jax.Array, x: jax.Array) -> jax.Array:
        value, gradient = jax.value_and_grad(loss)(w, x)
        KEPT.append(value)
        print("kept")
        return w - gradient

    with pytest.raises(InputError) as raised:
        trace_step(both, (WEIGHTS, BATCH))
    KEPT.clear()
    assert [problem.what.split()[3] for problem in raised.value.problems] == ["prints", "keeps"]
    assert "jax.debug.print" in raised.value.problems[0].fix
    assert capsys.readouterr().out == "kept\n", "it is shown all the same: people look at shapes so"


def test_everything_that_is_kept_is_said_at_once() -> None:
    model = Trainer()

    def keeps_three(w: jax.Array, x: jax.Array) -> jax.Array:
        hidden = x @ w
        model.hidden, model.output = hidden, [jnp.tanh(hidden)]
        KEPT.append({"w": w})
        return w - jax.grad(loss)(w, x)

    with pytest.raises(InputError) as raised:
        trace_step(keeps_three, (WEIGHTS, BATCH))
    KEPT.clear()
    said = "\n".join(problem.what for problem in raised.value.problems)
    assert len(raised.value.problems) == 3, said
    for owner in ("hidden of Trainer", "output of Trainer", "the global KEPT"):
        assert said.count(f"keeps a traced value in {owner}") == 1, said


def mask(size: int) -> Any:
    if size not in MASKS:
        MASKS[size] = np.ones(size, np.float32)
    return MASKS[size]


def cached(w: jax.Array, x: jax.Array) -> jax.Array:
    return w - RATE * jax.grad(lambda w, x: loss(w, x * mask(3)))(w, x)


def warned_and_logged(w: jax.Array, x: jax.Array) -> jax.Array:
    warnings.warn("an old option", DeprecationWarning, stacklevel=1)
    logging.getLogger("steps").warning("compiling for %s", x.shape)
    return w - jax.grad(loss)(w, x)


def held_while_traced(w: jax.Array, x: jax.Array) -> jax.Array:
    notes = types.SimpleNamespace(values=[])
    notes.notes = notes
    notes.values.append(loss(w, x))
    BY_NAME["while"] = notes
    gradient = jax.grad(loss)(w, x) * notes.values[0]
    del BY_NAME["while"]
    return w - gradient


LIBRARY = types.ModuleType("library")
LIBRARY.__file__ = pprint.__file__
exec(compile("CACHE = []\ndef keep(value):\n    CACHE.append(value)", pprint.__file__, "exec"), vars(LIBRARY))


def cached_by_a_library(w: jax.Array, x: jax.Array) -> jax.Array:
    block = Trainer()
    block.last = loss(w, x)
    LIBRARY.keep(block)
    return w - jax.grad(loss)(w, x)


def shown_by_jax(w: jax.Array, x: jax.Array) -> jax.Array:
    jax.debug.print("{}", x.sum())
    return w - jax.grad(loss)(w, x)


@pytest.mark.filterwarnings("ignore:an old option")
@pytest.mark.parametrize("step", [cached, warned_and_logged, held_while_traced, cached_by_a_library, shown_by_jax])
def test_what_is_harmless_is_read(step: Any) -> None:
    MASKS.clear()
    assert trace_step(step, (WEIGHTS, BATCH), micro_batches=2).micro_batches == 2


def test_prints_through_a_print_that_a_library_has_put_there_are_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    # Ray's hides its progress bars first.
    library: dict[str, Any] = {"__name__": "bars", "before": print}
    path = f"{sysconfig.get_paths()['purelib']}/bars.py"
    exec(compile("def shown(*words, **how):\n    before(*words, **how)\n", path, "exec"), library)
    monkeypatch.setattr("builtins.print", library["shown"])
    with pytest.raises(InputError, match=r"prints \(loss"):
        trace_step(prints, (WEIGHTS, BATCH))


def test_what_a_step_puts_in_place_of_the_terminal_stays() -> None:
    heard, before = types.SimpleNamespace(write=len, flush=list), sys.stdout

    def redirects(w: jax.Array, x: jax.Array) -> jax.Array:
        sys.stdout = heard
        return w - jax.grad(loss)(w, x)

    try:
        trace_step(redirects, (WEIGHTS, BATCH))
        assert sys.stdout is heard
    finally:
        sys.stdout = before
