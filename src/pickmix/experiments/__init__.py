"""Experiments: data settings, rivals, and the harness that runs one against the other."""
