"""The user's step as a program: called with his arguments, traced, and read, whatever it does that JAX allows."""
