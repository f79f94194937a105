"""Images beside an image model: the image tokenizer, sampling of codes, picture files, feature networks."""
