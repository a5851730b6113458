"""What is checked before a release leaves: the files that are given away, in the environments they meet."""
