"""Any torch module, trained by single-threaded processes on the CPU."""
