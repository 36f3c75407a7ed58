"""Which delayed flights are owed a compensation, and how much."""
