"""The paper's idea: which components a row visits, and on what schedule. Knows no models."""
