"""Row sources, file formats and generators of mixtures."""
