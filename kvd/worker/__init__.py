"""The engine child: one process that owns a model, its cells and the hot pool.

Native code can kill its process, so the daemon keeps the engine in a child and survives its death.
"""
