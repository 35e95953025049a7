"""ALFWorld text games: generated games, a fast engine, and an expert that acts on observations alone."""
