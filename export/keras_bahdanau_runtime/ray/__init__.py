"""Bulk translation and the service on Ray."""
