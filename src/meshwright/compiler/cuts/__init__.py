"""Where a loss is cut, and its parts as programs: layers, stages, stacks of layers, equal layers found once."""
