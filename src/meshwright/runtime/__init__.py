"""Runs instruction lists: in this process on submeshes of its devices."""
