"""Methods that rotate the hidden states and drop directions of them in every block at once."""
