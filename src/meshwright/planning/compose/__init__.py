"""One job over many kinds of device: islands, slices, partial plans, and their pipeline set into balanced pipelines."""
