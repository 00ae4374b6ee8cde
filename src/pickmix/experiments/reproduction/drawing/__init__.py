"""Figures from histories."""
