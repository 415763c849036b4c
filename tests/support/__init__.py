"""Fakes and builders that tests of several folders share: each exists once, here."""
