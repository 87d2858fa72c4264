"""The only writer of the FX graph."""
