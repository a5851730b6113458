"""From a JAX training step to static lists of instructions for device meshes.

`marking` says where gradients are ready, `trace` reads the step, `layers` and `cut` part the loss, `staging` writes
loops over stacked layers in the parts of their stages, `stage_programs` makes forward and backward of each
stage, `update` spreads the optimizer, `lower` writes the lists, `verify` checks them.
"""

from meshwright.compiler.supported_jax import check_jax

check_jax()
