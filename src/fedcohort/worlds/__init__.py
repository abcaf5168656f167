"""The heterogeneity: who owns which samples, how noisy, how fast, how often there. Data, not code."""
