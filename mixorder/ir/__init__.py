"""The loop IR: buffers, loop nests, statements, reduction kinds, and what makes a program legal."""
