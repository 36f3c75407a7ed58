"""The Django app."""

from django.apps import AppConfig


class CompensationConfig(AppConfig):
    name = "example_project.compensation"
    verbose_name = "Delay compensation"
