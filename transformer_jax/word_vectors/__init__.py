"""word2vec word vectors: training, files, analogy and similarity questions."""
