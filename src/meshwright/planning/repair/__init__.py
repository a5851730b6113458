"""Changes that make a plan or a job fit: each one priced."""
