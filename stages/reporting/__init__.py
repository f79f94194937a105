"""The report of a run: an HTML page, figures for DVC, a few lines in a terminal. Imports artifacts and errors only."""
