"""What several selectors share."""
