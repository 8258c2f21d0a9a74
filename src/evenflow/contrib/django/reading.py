"""Reading jobs through Django's own connection, where only it can see them: inside of an open transaction, or in memory."""

from evenflow import JobNotFound
from evenflow.contrib.django.links import Link
from evenflow.ids import job_number
from evenflow.job import JobRecord
from evenflow.store import reads
from evenflow.store.borrowed import BorrowedEngine


def find_job(link: Link, id: str) -> JobRecord:
    """The job with this id as it can be seen from here, or JobNotFound."""
    number = job_number(id)
    app, connection = link.app, link.joined()
    if connection is None:
        return app.job(id).record
    found = reads.find(BorrowedEngine(connection, app.settings.schema), [number])
    if number not in found:
        raise JobNotFound(f"no job {id} in the database {link.address.alias!r}")
    return found[number]
