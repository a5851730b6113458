"""A step on micro-batches, written from the step on the whole batch so that both compute the same.

`walk` evaluates a program for the samples of one micro-batch, `program` is what comes of it, `share` writes the step
with it, `joined_results` finds what micro-batches return and how it is joined, and `said` takes the word of the user
for what is done with the losses of micro-batches.
"""
