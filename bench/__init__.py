"""``python -m bench``: what the guard costs beside plain Celery and its peers. It asserts nothing."""
