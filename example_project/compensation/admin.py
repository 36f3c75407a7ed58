"""The models in Django's admin, for looking around."""

from django.contrib import admin

from example_project.compensation.models import Airline, Claim, Flight, Run


@admin.register(Airline)
class AirlineAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ("carrier", "name", "imported_at", "assessed_at")


@admin.register(Flight)
class FlightAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ("airline", "number", "date", "origin", "destination", "distance_miles", "arrival_delay")
    list_filter = ("airline", "origin")
    list_select_related = ("airline",)


@admin.register(Claim)
class ClaimAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ("flight", "amount_eur", "token", "created_at")
    list_filter = ("amount_eur", "flight__airline")
    list_select_related = ("flight",)
    raw_id_fields = ("flight",)


@admin.register(Run)
class RunAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = (
        "task",
        "carrier",
        "attempt",
        "token",
        "worker",
        "started_at",
        "ended_at",
        "outcome",
        "rows",
    )
    list_filter = ("task", "outcome", "carrier", "worker")
