"""Headline claims of the catalogued systems beside what the tree says of them: docs/claims.md.

`make claims`, or `python -m benchmarks.claims`. A claim is one entry of a list; its command is what its number is
computed with.
"""
