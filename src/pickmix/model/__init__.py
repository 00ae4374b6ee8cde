"""The fitted mixture as a value, and what can be computed from it."""
