"""What customers see."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from .models import Order
from .tasks import confirm


@csrf_exempt  # an example for curl
@require_POST
@transaction.atomic
def place_order(request: HttpRequest) -> JsonResponse:
    """Store an order and the job that confirms it: both, or neither."""
    order = Order.objects.create(customer=request.POST["customer"])
    job = confirm.enqueue(order)
    return JsonResponse({"order": order.pk, "job": job.id}, status=201)
