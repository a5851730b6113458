"""Answers as pages show them: plans as data, what is asked about them, and a page without a plan."""
