"""The overview at the top, Django's admin below it."""

from django.contrib import admin
from django.urls import path

from example_project.compensation.views import overview

urlpatterns = [
    path("", overview, name="overview"),
    path("admin/", admin.site.urls),
]
