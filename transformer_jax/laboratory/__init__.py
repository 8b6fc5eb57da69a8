"""Small experiments that compare recurrence with attention, each a function and a picture."""
