"""What `python -m mixorder` runs: one module per command."""
