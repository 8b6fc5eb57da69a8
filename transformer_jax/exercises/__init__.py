"""Exercises: blanks, the laws and numbers that check answers, and likely causes of wrong ones."""
