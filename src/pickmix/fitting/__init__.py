"""The one fitting loop, its trace, its progress and how it ends."""
