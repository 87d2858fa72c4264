"""Loop program in, loop program out."""
