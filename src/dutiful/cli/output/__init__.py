"""Prints results: tables and pages for people, JSON for programs."""
