"""The measuring harness: what the executables of bench/ are made of. Python's standard library only."""
