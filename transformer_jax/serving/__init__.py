"""A loaded run behind an HTTP server: translations as JSON, and one page."""
