"""Says what this machine can do and what will go wrong, with a mend for each failure."""
