"""FX graph in, regions out: which nodes become one pair of kernels."""
