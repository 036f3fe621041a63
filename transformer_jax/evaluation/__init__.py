"""BLEU, latency, attention weights and word alignments."""
