"""How good a model is: perplexity by a named protocol, and tasks by lm-eval."""
