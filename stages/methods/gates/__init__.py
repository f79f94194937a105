"""Settings of structured methods that train gates; the training itself is in solving/gates."""
