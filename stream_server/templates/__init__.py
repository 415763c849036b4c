"""Studies to begin with: the examples, which are those in `configs`, and a blank one in three languages.

Offers: new_study.
May import: config, storage.
"""
