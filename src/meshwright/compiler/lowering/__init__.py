"""Instruction lists of a step in parts: forward, backward and update of every stage, in the order of a schedule."""
