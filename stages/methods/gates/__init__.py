"""Methods that choose heads and channels by gates trained on the calibration text: their settings."""
