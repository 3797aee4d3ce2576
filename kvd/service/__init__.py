"""One repository at work: joins source, recall, the engine child and the KV store."""
