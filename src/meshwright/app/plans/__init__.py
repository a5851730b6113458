"""Answers of `plan`: one kind of device, several, or measured layers, and the set of plans that they become."""
