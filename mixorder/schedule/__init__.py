"""How a loop program runs on a device: properties, cost, and the choice of tile, split and warps."""
