"""BLEU, attention weights and word alignments."""
