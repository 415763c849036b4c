"""The schedule: which simulation is started, retried or given up, and when. Pure.

Offers: retry_policy, schedule, shared_jobs, simulation.
May import: messages.
"""
