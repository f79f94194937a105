"""Files on disk: atomic, hashed, checked when they are read."""
