"""Pictures of mixtures, after scikit-learn's convention. They need matplotlib: the extra `plot`."""
