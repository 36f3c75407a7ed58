import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Airline",
            fields=[
                ("carrier", models.CharField(max_length=2, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=80)),
                (
                    "imported_at",
                    models.DateTimeField(blank=True, help_text="when all its flights were in", null=True),
                ),
                (
                    "assessed_at",
                    models.DateTimeField(blank=True, help_text="when all of these were assessed", null=True),
                ),
            ],
            options={
                "ordering": ("carrier",),
            },
        ),
        migrations.CreateModel(
            name="Run",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("task", models.CharField(max_length=40)),
                ("carrier", models.CharField(max_length=2)),
                (
                    "key",
                    models.CharField(
                        help_text="execution key: attempts of one execution share it", max_length=200
                    ),
                ),
                ("attempt", models.PositiveIntegerField()),
                (
                    "token",
                    models.PositiveBigIntegerField(
                        help_text="fencing token; empty: ran without a store", null=True
                    ),
                ),
                ("worker", models.CharField(max_length=100)),
                ("pid", models.PositiveIntegerField()),
                ("started_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                (
                    "outcome",
                    models.CharField(
                        blank=True,
                        choices=[("done", "done"), ("stopped", "stopped by an error or a lost lease")],
                        max_length=10,
                    ),
                ),
                (
                    "rows",
                    models.PositiveIntegerField(
                        default=0, help_text="flights imported, or claims found, by this attempt"
                    ),
                ),
            ],
            options={
                "ordering": ("-started_at",),
            },
        ),
        migrations.CreateModel(
            name="Flight",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("date", models.DateField()),
                ("number", models.PositiveIntegerField()),
                ("origin", models.CharField(max_length=3)),
                ("destination", models.CharField(max_length=3)),
                ("distance_miles", models.PositiveIntegerField()),
                (
                    "arrival_delay",
                    models.IntegerField(blank=True, help_text="minutes; empty: it never arrived", null=True),
                ),
                (
                    "airline",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="flights",
                        to="compensation.airline",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Claim",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("amount_eur", models.PositiveIntegerField()),
                (
                    "token",
                    models.PositiveBigIntegerField(
                        help_text="fencing token of the attempt that wrote it", null=True
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "flight",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, to="compensation.flight"
                    ),
                ),
            ],
        ),
        migrations.AddConstraint(
            model_name="flight",
            constraint=models.UniqueConstraint(
                fields=("airline", "date", "number", "origin"), name="one_row_per_flight"
            ),
        ),
    ]
