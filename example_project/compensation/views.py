"""One page: what every airline owes, and the runs that found it."""

from django.db.models import Count, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from example_project.compensation.models import Airline, Claim, Flight, Run


def overview(request: HttpRequest) -> HttpResponse:
    """The airlines with their flights and claims, and the newest runs."""
    flights = dict(Flight.objects.values_list("airline").annotate(Count("pk")))
    claims = {
        carrier: (number, euros)
        for carrier, number, euros in Claim.objects.values_list("flight__airline").annotate(
            Count("pk"), Sum("amount_eur")
        )
    }
    airlines = [
        {
            "airline": airline,
            "flights": flights.get(airline.carrier, 0),
            "claims": claims.get(airline.carrier, (0, 0))[0],
            "euros": claims.get(airline.carrier, (0, 0))[1],
        }
        for airline in Airline.objects.all()
    ]
    context = {
        "airlines": airlines,
        "flights": sum(flights.values()),
        "claims": sum(number for number, _ in claims.values()),
        "euros": sum(euros for _, euros in claims.values()),
        "runs": Run.objects.all()[:60],
    }
    return render(request, "compensation/overview.html", context)
