"""Another plan written into the user's own files: the fewest options and keys changed, where they stand."""
