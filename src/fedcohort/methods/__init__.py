"""One aggregation method per file: client half and server half together."""
