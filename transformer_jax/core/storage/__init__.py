"""Object stores, and the local folders that stand for what is in them."""
