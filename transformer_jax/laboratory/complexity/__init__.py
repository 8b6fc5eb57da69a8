"""Costs and reach of several kinds of layers: table 1 of Vaswani et al. 2017."""
