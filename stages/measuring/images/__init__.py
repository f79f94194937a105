"""Images that a model draws: samples, their features, and FID, sFID, IS, precision and recall."""
