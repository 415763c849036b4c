"""Tests of the documentation: its site, its code blocks, its reference."""
