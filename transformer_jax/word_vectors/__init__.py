"""Word vectors of word2vec: training, files, questions of analogy and similarity."""
