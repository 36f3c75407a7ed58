"""Extensions for frameworks. Each needs its own extra."""
