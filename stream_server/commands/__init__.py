"""The command `stream-study`: new studies, the doctor, tables and pictures, live runs, and the page in the browser.

Offers: none.
May import: analysis, config, dashboard, doctor, machine, storage, templates.
"""
