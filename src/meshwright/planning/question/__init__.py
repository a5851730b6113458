"""What is asked: model, cluster, batch, samples, number formats and training, as nouns with every default stated."""
