"""What a run came to, as a page, as figures for DVC, and as a few lines in a terminal."""
