"""The demo: real servers and workers, a killed worker, a second beat, and an account of what happened."""
