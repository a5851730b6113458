"""Library models in plain JAX: a `ModelSpec` of the planner as weights, a loss and a training step."""
