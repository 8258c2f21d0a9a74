"""What is sold."""

from django.db import models


class Order(models.Model):
    """An order of a customer."""

    customer = models.CharField(max_length=100)
    confirmed_at = models.DateTimeField(null=True)
