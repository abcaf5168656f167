"""The command line: arguments in, texts out; the work is done elsewhere."""
