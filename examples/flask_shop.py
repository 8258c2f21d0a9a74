"""Flask: the request's session carries the job; a worker runs on threads of the same process."""

import os
from typing import Any

from flask import Flask, abort
from sqlalchemy import create_engine, text
from sqlalchemy.orm import sessionmaker

from evenflow import Evenflow, JobNotFound
from evenflow.contrib.wsgi import running_worker

URL = os.environ.get("DATABASE_URL", "sqlite:///shop.db")
jobs = Evenflow(URL)
engine = create_engine(URL.replace("postgresql://", "postgresql+psycopg://"))
make_session = sessionmaker(engine)
service = Flask(__name__)


@jobs.task(queue="mail")
def welcome(address: str) -> str:
    return f"hello {address}"


@service.post("/users/<address>")
def sign_up(address: str) -> dict[str, str]:
    with make_session.begin() as session:
        session.execute(text("insert into shop_user values (:address)"), {"address": address})
        return {"job": welcome.using(connection=session).enqueue(address).id}


@service.get("/jobs/<job_id>")
def look(job_id: str) -> dict[str, Any]:
    try:
        return {"result": jobs.job(job_id).result(timeout=10)}
    except JobNotFound as missing:
        abort(404, str(missing))


def prepare() -> None:
    with engine.begin() as connection:
        connection.execute(text("create table if not exists shop_user (address text primary key)"))
    jobs.migrate()


if __name__ == "__main__":
    prepare()
    with running_worker(jobs, concurrency=4):
        service.run()
