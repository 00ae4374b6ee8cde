"""One visit of a chunk of rows: the pure sweep, its reference in NumPy, and statistics that add."""
