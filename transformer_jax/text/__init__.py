"""From a corpus to batches: sentence pairs, subwords and packed rows."""
