"""What tests and `tools/` share: cases, random programs, how these are compiled and compared."""
