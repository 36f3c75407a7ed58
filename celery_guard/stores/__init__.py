"""The stores that need no framework: memory (the reference) and Redis. They do not know each other."""
