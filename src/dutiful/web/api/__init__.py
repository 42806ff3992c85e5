"""The operations of the admin API, one file a group."""
