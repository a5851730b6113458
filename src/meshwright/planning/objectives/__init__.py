"""What is wanted of a plan: objectives, each a file of its own, and limits of time and price."""

from meshwright.planning.objectives.aim import OBJECTIVES, QUICKEST, Aim, admitted, aim_of
from meshwright.planning.objectives.base import Objective, Offer, require_prices

__all__ = ["OBJECTIVES", "QUICKEST", "Aim", "Objective", "Offer", "admitted", "aim_of", "require_prices"]
