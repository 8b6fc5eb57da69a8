"""Object stores, and the local folders that mirror them."""
