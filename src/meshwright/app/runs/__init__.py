"""Runs on real devices: what they take, and their logs beside what was predicted."""
