"""Algorithms: each a Program and the scikit-learn style estimator around it."""
