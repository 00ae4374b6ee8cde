"""Looking at a fitted mixture: diagnostics, displays and the report."""
