"""Find a region's fastest schedule at compile time: search, compile, time, and store."""
