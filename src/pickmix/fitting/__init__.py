"""The one fitting loop, its record, its progress bar and its ends."""
