"""What a student's copy of the course needs: `check("lab2.gradients", answer)` judges an answer and hands it in."""
