"""Stages of a loss for slices of a sequence, which run one after the other: a later slice reads what earlier ones keep.

Upstream of schedules' lists, downstream of the cut into stages.
"""
