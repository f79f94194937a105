"""Model classes of structured checkpoints (different widths per block, sliced hidden states), registered on import."""
