"""Experiments: data, other libraries and algorithms (rivals), and how they are measured."""
