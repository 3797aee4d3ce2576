"""KV blocks: the codec, the hot pool and the cold store."""
