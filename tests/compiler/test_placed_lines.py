"""Lines of the user's code are told by mesh."""

from __future__ import annotations

from meshwright.compiler.methods.pipeshard import PipeshardParallel
from meshwright.runtime.parallelize import parallelize
from tests.compiler.models import initial, step, tokens


def test_every_mesh_says_what_share_of_which_lines_it_runs() -> None:
    run = parallelize(step, method=PipeshardParallel(num_stages=2, num_micro_batches=2))
    said = run.lower(initial(), tokens(16)).lines()
    assert said.count("of the products and convolutions of a step") == 2
    assert "tests/compiler/models.py:" in said
