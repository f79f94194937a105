"""Quality of a model: perplexity by a stated protocol, and lm-eval tasks."""
