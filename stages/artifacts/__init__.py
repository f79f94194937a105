"""Files on disk: written atomically, hashed, checked when they are read; the block store. Imports errors only."""
