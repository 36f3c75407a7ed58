"""What a project needs to test guarded tasks: a store's conformance suite, real servers, real workers.

Importing this package loads neither Celery nor Django nor a store's driver.
"""
