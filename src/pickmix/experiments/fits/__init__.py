"""Runs carried out: what each kind of run does."""
