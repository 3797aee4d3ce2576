"""Model files: which exist, which suits a machine, how one is fetched, which is in use.

Nothing here loads a model: files are copied, hashed and named, never interpreted beyond their first bytes.
"""
