"""When a failed attempt is tried again, and what class of error it was."""
