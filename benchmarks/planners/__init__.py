"""Planners of the literature as passes over our prices, compared with ours: `python -m benchmarks.planners`."""
