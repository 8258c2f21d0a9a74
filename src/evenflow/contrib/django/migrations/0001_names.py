"""The models without tables, so that their permissions exist and `makemigrations` finds nothing to do."""

from typing import Any, ClassVar

from django.db import migrations, models

_NAMES = ("Job", "FailedJob", "Queue", "Schedule", "Worker")
_VERBOSE = {"FailedJob": "failed job"}


class Migration(migrations.Migration):
    """Nothing is written but the permissions."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name=name,
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                )
            ],
            options={
                "verbose_name": _VERBOSE.get(name, name.lower()),
                "managed": False,
                "default_permissions": ("view", "change"),
            },
        )
        for name in _NAMES
    ]
