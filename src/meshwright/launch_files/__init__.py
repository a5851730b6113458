"""A user's launch files: scripts and configurations read as plans, and written back with another plan in them."""
