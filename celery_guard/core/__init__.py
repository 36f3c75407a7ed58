"""The words of celery_guard: states, keys, options, errors, the store's contract and its rules.

Imports the standard library only; knows neither Celery nor any store.
"""
