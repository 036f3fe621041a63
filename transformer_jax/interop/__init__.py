"""Models of Marian and Hugging Face in, and models for other engines out."""
