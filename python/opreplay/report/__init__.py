"""Shows results: rows come in; text on a terminal, JSON and CSV go out."""
