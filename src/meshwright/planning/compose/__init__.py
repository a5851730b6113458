"""One job over many kinds of device: islands, slices, partial plans, and their composition into balanced pipelines."""
