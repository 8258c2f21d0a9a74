"""What jobs are about."""

import uuid

from django.db import models


class Customer(models.Model):
    name = models.CharField(max_length=50)

    class Meta:
        app_label = "shop"


class Order(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    customer = models.ForeignKey(Customer, on_delete=models.CASCADE)

    class Meta:
        app_label = "shop"
