"""Experiments that the lessons measure: jobs, programs and harnesses, each explained in the lesson that uses it."""
