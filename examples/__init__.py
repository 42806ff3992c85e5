"""Programs that show Dutiful at work; each runs by itself."""
