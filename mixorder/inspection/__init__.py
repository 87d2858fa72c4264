"""What mixorder would do to a model: capture its graphs, and show the regions as text, JSON and a page."""
