"""Size, multiply-accumulates, memory, prefill and decode speed of loaded models, timed in turns."""
