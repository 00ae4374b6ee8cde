"""What a fitted mixture looks like in numbers: what displays draw and reports show."""
