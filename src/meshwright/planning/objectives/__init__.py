"""What is wanted of a plan: objectives, each a file of its own, and limits of time and price."""

from meshwright.planning.objectives.aim import OBJECTIVES, QUICKEST, Aim, admitted, aim_of, require_prices
from meshwright.planning.objectives.base import Objective

__all__ = ["OBJECTIVES", "QUICKEST", "Aim", "Duration", "Objective", "admitted", "aim_of", "require_prices"]
