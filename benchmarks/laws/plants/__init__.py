"""Trainings of the suite: each file holds the models of one field."""
