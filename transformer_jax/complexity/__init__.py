"""What layers of several kinds cost and how far they see: table 1 of Vaswani et al. 2017."""
