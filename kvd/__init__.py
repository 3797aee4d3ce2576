"""kvd: a repository's transformer KV states, paged between GPU or host memory and disk."""

__version__ = "0.1.0"
