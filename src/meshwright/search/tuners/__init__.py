"""Tuners on the same spaces the exact search covers: random, Optuna, SMAC3, Ray Tune.

Importing this package imports none of them; each `with_*.py` imports its library when a study starts.
"""
