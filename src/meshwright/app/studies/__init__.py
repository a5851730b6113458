"""Studies: questions with several values, read from files, searched on all cores."""
