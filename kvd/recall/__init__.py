"""Finding chunks again: the index of one repository, its words and vectors, and the ranking."""
