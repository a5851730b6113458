"""A program evaluated for some of its samples: one micro-batch of several, or those of one data rank.

`placements` finds which dimension of every value counts samples, `positions` indices that are the number of the sample,
`walk` evaluates equation after equation for the samples of one part.
"""
