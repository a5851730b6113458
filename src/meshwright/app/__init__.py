"""What a user can ask: one use case a file, from a request to an answer."""
