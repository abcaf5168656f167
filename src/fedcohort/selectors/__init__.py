"""One paper or idea per file: who trains next."""
