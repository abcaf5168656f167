"""A report in other formats, and writers for TensorBoard and MLflow."""
