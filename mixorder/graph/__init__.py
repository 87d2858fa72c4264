"""FX side of the pipeline: find reductions, grow a region around them, and write the fused kernels back."""
