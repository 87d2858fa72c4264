"""The loop IR and its transforms: lower, split the outer reduction, reorder, merge."""
