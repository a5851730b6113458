"""The exact search: spaces in blocks, lower bounds, prices, certificates; and the tuners beside it."""
