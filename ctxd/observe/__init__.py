"""Seeing inside: logs."""
