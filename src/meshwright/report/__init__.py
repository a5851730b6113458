"""Answers as people read them: words, tables, figures, timelines."""
