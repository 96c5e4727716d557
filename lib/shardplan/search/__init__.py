"""Search for the best strategy: `strategies` plans all sensible ones; `training_cost` turns a step into hours and
dollars; `decision_matrix` has the six jobs of the course's sources."""
