"""Everything that imports private names of torch, and nothing else does."""
