"""Every English sentence of an answer, made of the records below: one file a subject."""
