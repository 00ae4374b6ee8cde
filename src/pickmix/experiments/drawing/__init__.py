"""Pictures from histories."""
