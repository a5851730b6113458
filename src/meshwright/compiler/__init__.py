"""From a JAX training step to static lists of instructions for device meshes.

`marking` says where gradients are ready, `trace` reads the step, `layers` and `cut` part the loss, `halves` makes
forward and backward programs of each stage, `update` spreads the optimizer, `lower` writes the lists, `verify` checks
them.
"""
