"""my-app: digit classification on Flower, with clients chosen by a fedcohort selector."""
