"""Arrays in, updates out: one interface, several engines that must agree."""
