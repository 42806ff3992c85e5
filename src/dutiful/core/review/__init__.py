"""Dead letters under review, and the audit trail, as values."""
