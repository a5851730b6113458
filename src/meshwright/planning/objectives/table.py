"""The objectives there are: a new one is a file beside this one and a line here."""

from __future__ import annotations

from meshwright.planning.objectives.base import Objective
from meshwright.planning.objectives.cost import COST
from meshwright.planning.objectives.memory import MEMORY
from meshwright.planning.objectives.time import TIME

OBJECTIVES: dict[str, Objective] = {objective.name: objective for objective in (TIME, COST, MEMORY)}
