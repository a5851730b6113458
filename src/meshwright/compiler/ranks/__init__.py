"""A step as each data rank runs it: gradients stay on their device until the last micro-batch, and are reduced once.

`stages` writes the loss of one rank and proves on its way that the losses of all ranks add up to the whole,
`collectives` moves many arrays at once, `layout` says where each value of a stage is placed and wraps what one rank
runs for the whole mesh.
"""
