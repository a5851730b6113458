"""Formulas of time and bytes: arrays in, arrays out, NumPy alone."""
