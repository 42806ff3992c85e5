"""The stores: one folder each, all behind the contract in dutiful.store."""
