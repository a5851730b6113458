"""What may be asked: fields with a name, a kind, a rule and help, from which command line and Python are made."""
