"""Array kernels that know no federated-learning noun. NumPy only."""
