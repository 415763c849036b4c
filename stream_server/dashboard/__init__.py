"""The page in the browser: what files and live servers tell of runs, shown by a Bokeh server as it changes.

Offers: serving.
May import: analysis, machine.
"""
