"""Code that a student's copy of the course needs: `check("lab2.gradients", answer)` judges or hands in an answer."""
