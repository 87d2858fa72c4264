"""Triton text from a loop program and a schedule, and the loading of that text."""
