"""Stages priced from measured layer profiles."""
