"""Small experiments on recurrence, attention and rewards, each with a function and a picture."""
