"""A model of which one block at a time is in memory: forwards, captured inputs, gradients, units."""
