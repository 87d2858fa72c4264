"""The only folder that imports private names of torch."""
