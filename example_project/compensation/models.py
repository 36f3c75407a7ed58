"""Airlines, their flights, the claims that late flights give rise to, and a log of the runs."""

from django.db import models


class Airline(models.Model):
    """One carrier, and how far the work for it has got."""

    carrier = models.CharField(max_length=2, primary_key=True)
    name = models.CharField(max_length=80)
    imported_at = models.DateTimeField(null=True, blank=True, help_text="when all its flights were in")
    assessed_at = models.DateTimeField(null=True, blank=True, help_text="when all of these were assessed")

    class Meta:
        ordering = ("carrier",)

    def __str__(self) -> str:
        return f"{self.carrier} {self.name}"


class Flight(models.Model):
    """One flight. The database holds each flight once, however often the file is imported."""

    airline = models.ForeignKey(Airline, on_delete=models.CASCADE, related_name="flights")
    date = models.DateField()
    number = models.PositiveIntegerField()
    origin = models.CharField(max_length=3)
    destination = models.CharField(max_length=3)
    distance_miles = models.PositiveIntegerField()
    arrival_delay = models.IntegerField(null=True, blank=True, help_text="minutes; empty: it never arrived")

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("airline", "date", "number", "origin"), name="one_row_per_flight"
            ),
        )

    def __str__(self) -> str:
        return f"{self.airline_id}{self.number} {self.origin}-{self.destination} {self.date}"


class Claim(models.Model):
    """What is owed for one flight. The database holds at most one claim per flight, whoever writes it."""

    flight = models.OneToOneField(Flight, on_delete=models.CASCADE)
    amount_eur = models.PositiveIntegerField()
    token = models.PositiveBigIntegerField(null=True, help_text="fencing token of the attempt that wrote it")
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.amount_eur} EUR for flight {self.flight_id}"


class Run(models.Model):
    """One attempt of a task that had something to do, as its body saw it. One that was killed has no end."""

    class Outcome(models.TextChoices):
        DONE = "done", "done"
        STOPPED = "stopped", "stopped by an error or a lost lease"

    task = models.CharField(max_length=40)
    carrier = models.CharField(max_length=2)
    key = models.CharField(max_length=200, help_text="execution key: attempts of one execution share it")
    attempt = models.PositiveIntegerField()
    token = models.PositiveBigIntegerField(null=True, help_text="fencing token; empty: ran without a store")
    worker = models.CharField(max_length=100)
    pid = models.PositiveIntegerField()
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=10, blank=True, choices=Outcome)
    rows = models.PositiveIntegerField(
        default=0, help_text="flights imported, or claims found, by this attempt"
    )

    class Meta:
        ordering = ("-started_at",)

    def __str__(self) -> str:
        return f"{self.task} {self.carrier}, attempt {self.attempt}"
