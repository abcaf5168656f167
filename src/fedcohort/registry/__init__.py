"""Names to objects: the explicit catalogue and entry points of other packages."""
