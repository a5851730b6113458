"""Parallelizers of equal devices that plan slices of a model, ours or anybody's, and the guard that runs them."""
