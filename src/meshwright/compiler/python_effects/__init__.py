"""What a step does to Python beside its computation, which happens when it is traced and not when it runs."""
