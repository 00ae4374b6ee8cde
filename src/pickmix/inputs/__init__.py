"""What users pass, turned into rows of numbers: arrays, frames, files and streams of batches."""
