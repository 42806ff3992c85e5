"""The store's named statements."""

from dutiful.stores.statements import load

SQL = load("dutiful.stores.sqlite")
