"""Reports for an instructor after grading: tables, a page for each class, CSV files, similarity, the leaderboard."""
