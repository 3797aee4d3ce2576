"""llama.cpp through its low-level API: cells, sequences, state, tokens, templates."""
