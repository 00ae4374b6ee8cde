"""The figures and tables of the paper behind pickmix, and comparisons with other libraries."""
