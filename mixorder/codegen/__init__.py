"""Triton text from a loop program and a plan, and the loading of that text."""
