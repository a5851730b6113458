"""Measurements in, efficiency curves out: the loop closes through data files, never through code."""
