"""The table of orders."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Creates it."""

    initial = True
    dependencies: list[tuple[str, str]] = []
    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("customer", models.CharField(max_length=100)),
                ("confirmed_at", models.DateTimeField(null=True)),
            ],
        )
    ]
