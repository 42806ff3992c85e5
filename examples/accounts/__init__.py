"""Accounts: work that is asked for, decided and recorded in SQL, and done by a worker that may touch no table."""
