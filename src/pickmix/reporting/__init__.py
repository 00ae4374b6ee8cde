"""A report on a fitted mixture: one HTML file that needs no network."""
