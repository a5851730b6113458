"""How every test runs: array shapes are checked, and hypothesis gives the same examples each time."""

from __future__ import annotations

import os

from beartype import BeartypeConf, beartype
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

# As mypy does, take an int where a float is asked for.
check_types = beartype(conf=BeartypeConf(is_pep484_tower=True))

# Every call into these packages has its arguments and results held against annotations such as
# Float[np.ndarray, "rows"]. The hook must be in place before the first of them is imported.
install_import_hook(
    [
        *("meshwright.kernels", "meshwright.schedules", "meshwright.estimate", "meshwright.search"),
        "meshwright.calculon",
        # The rest of planning.compose prices one composition at a time, millions of calls of plain numbers.
        *(
            f"meshwright.planning.compose.{name}"
            for name in ("beam", "bounds", "columns", "pruning", "sequences", "stage_kinds")
        ),
    ],
    typechecker=f"{__name__}.check_types",
)

settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    max_examples=50,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("full", settings.get_profile("default"), derandomize=False, max_examples=500, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
