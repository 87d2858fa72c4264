"""A region of the FX graph as a loop program."""
