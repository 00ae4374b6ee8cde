"""The paper's experiments: what is run, how it is kept, and what is drawn from it."""
