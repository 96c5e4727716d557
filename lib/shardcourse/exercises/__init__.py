"""Checks of the lessons' exercises: each runs the reader's code on ranks and says in words what is wrong."""
