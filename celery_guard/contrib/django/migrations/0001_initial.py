from django.db import migrations, models

import celery_guard.contrib.django.fields


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Dispatcher",
            fields=[
                (
                    "name",
                    celery_guard.contrib.django.fields.KeyField(
                        max_length=255, primary_key=True, serialize=False
                    ),
                ),
                ("owner", celery_guard.contrib.django.fields.KeyField(max_length=255, null=True)),
                ("expires_at", models.BigIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="Lock",
            fields=[
                (
                    "lock_key",
                    celery_guard.contrib.django.fields.KeyField(
                        max_length=255, primary_key=True, serialize=False
                    ),
                ),
                ("holder", celery_guard.contrib.django.fields.KeyField(max_length=255, null=True)),
                ("token", models.BigIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="Counter",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("task", celery_guard.contrib.django.fields.KeyField(max_length=255)),
                ("state", models.CharField(max_length=16)),
                ("count", models.BigIntegerField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("task", "state"), name="celery_guard_counter_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="Execution",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("key", celery_guard.contrib.django.fields.KeyField(max_length=255)),
                ("number", models.BigIntegerField()),
                ("current_key", celery_guard.contrib.django.fields.KeyField(max_length=255, null=True)),
                ("queue_key", celery_guard.contrib.django.fields.KeyField(max_length=255, null=True)),
                ("task", celery_guard.contrib.django.fields.KeyField(max_length=255)),
                ("lock_key", celery_guard.contrib.django.fields.KeyField(max_length=255)),
                ("trigger_id", celery_guard.contrib.django.fields.KeyField(max_length=255)),
                ("fingerprint", models.CharField(max_length=255)),
                ("message", models.TextField()),
                ("source", models.CharField(max_length=255)),
                ("overlap", models.CharField(max_length=16)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("pending", "pending"),
                            ("waiting", "waiting"),
                            ("running", "running"),
                            ("retrying", "retrying"),
                            ("interrupted", "interrupted"),
                            ("lost", "lost"),
                            ("uncertain", "uncertain"),
                            ("succeeded", "succeeded"),
                            ("failed", "failed"),
                            ("skipped", "skipped"),
                            ("coalesced", "coalesced"),
                            ("replaced", "replaced"),
                            ("lock_timeout", "lock_timeout"),
                            ("expired", "expired"),
                            ("revoked", "revoked"),
                            ("dead", "dead"),
                        ],
                        max_length=16,
                    ),
                ),
                ("reason", models.TextField()),
                ("by", celery_guard.contrib.django.fields.KeyField(max_length=255, null=True)),
                ("scheduled_at", models.BigIntegerField(null=True)),
                ("lease", models.BigIntegerField()),
                ("max_attempts", models.BigIntegerField()),
                ("keep", models.BigIntegerField()),
                ("unique_for", models.BigIntegerField()),
                ("once_per_key", models.BooleanField()),
                ("hold", models.BooleanField()),
                ("deadline", models.BigIntegerField(null=True)),
                ("owner", celery_guard.contrib.django.fields.KeyField(max_length=255, null=True)),
                ("token", models.BigIntegerField(null=True)),
                ("expires_at", models.BigIntegerField(null=True)),
                ("attempt", models.BigIntegerField()),
                ("lost_attempts", models.BigIntegerField()),
                ("retries", models.BigIntegerField()),
                ("triggers", models.BigIntegerField()),
                ("order", models.BigIntegerField()),
                ("created_at", models.BigIntegerField()),
                ("started_at", models.BigIntegerField(null=True)),
                ("finished_at", models.BigIntegerField(null=True)),
                ("keep_until", models.BigIntegerField(null=True)),
                ("due_at", models.BigIntegerField(null=True)),
                ("sends", models.BigIntegerField()),
                ("result", models.TextField(null=True)),
                ("checkpoint", models.TextField(null=True)),
                ("previous", models.BigIntegerField(null=True)),
                ("followers", models.TextField()),
            ],
            options={
                "indexes": [
                    celery_guard.contrib.django.fields.FilledIndex(
                        fields=["due_at"], name="celery_guard_due"
                    ),
                    celery_guard.contrib.django.fields.FilledIndex(
                        fields=["queue_key", "order", "number"], name="celery_guard_queue"
                    ),
                    celery_guard.contrib.django.fields.FilledIndex(
                        fields=["keep_until"], name="celery_guard_keep"
                    ),
                    models.Index(fields=["task", "state", "created_at"], name="celery_guard_task"),
                    models.Index(fields=["trigger_id"], name="celery_guard_trigger"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("key", "number"), name="celery_guard_number"),
                    models.UniqueConstraint(fields=("current_key",), name="celery_guard_current"),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("current_key__isnull", True), ("current_key", models.F("key")), _connector="OR"
                        ),
                        name="celery_guard_current_is_key",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("state", "running"), _negated=True),
                            models.Q(
                                ("expires_at__isnull", False),
                                ("owner__isnull", False),
                                ("token__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="celery_guard_running_is_owned",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                (
                                    "state__in",
                                    [
                                        "coalesced",
                                        "dead",
                                        "expired",
                                        "failed",
                                        "lock_timeout",
                                        "replaced",
                                        "revoked",
                                        "skipped",
                                        "succeeded",
                                    ],
                                ),
                                _negated=True,
                            ),
                            models.Q(("finished_at__isnull", False), ("keep_until__isnull", False)),
                            _connector="OR",
                        ),
                        name="celery_guard_final_has_an_end",
                    ),
                ],
            },
        ),
    ]
