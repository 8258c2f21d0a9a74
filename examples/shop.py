"""A small shop: the app that the examples of the command line use."""

from evenflow import Evenflow, Queue, Retry

app = Evenflow("sqlite:///shop.db", queues=[Queue("mail"), Queue("reports", max_concurrency=2)])


@app.task(queue="mail", group="tenant", retry=Retry(max_attempts=3))
def send(tenant: str, to: str) -> str:
    """Send a mail; here, only say so."""
    return f"{tenant} wrote to {to}"


@app.task(queue="reports", timeout=60)
def report(year: int) -> int:
    """Count the orders of a year, and fail for years that the shop has not seen."""
    return {2024: 1200, 2025: 1800}[year]
