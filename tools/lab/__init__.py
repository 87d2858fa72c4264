"""What the scripts in `tools/` share: cases, programs, timing, and how results are compared and printed."""
