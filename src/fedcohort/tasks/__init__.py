"""What is trained: datasets, models, objectives and the engines that train a whole cohort."""
