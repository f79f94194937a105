"""Methods that rotate the hidden states to a basis and drop components of it in every block."""
