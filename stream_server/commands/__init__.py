"""The command `stream-study`: new studies, the doctor, tables and pictures, live runs, and the page in the browser.

May import: analysis, dashboard, doctor, machine, storage, templates.
"""
