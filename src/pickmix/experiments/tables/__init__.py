"""Tables from histories, beside the paper's numbers."""
