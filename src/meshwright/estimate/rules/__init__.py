"""What may be asked of a plan: rules as data, and what no rule prices."""
