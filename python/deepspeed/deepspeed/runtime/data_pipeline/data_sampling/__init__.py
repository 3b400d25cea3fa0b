"""What chooses data by its difficulty, and what layers see of it."""
