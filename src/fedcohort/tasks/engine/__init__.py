"""One seam, several engines that must agree."""
