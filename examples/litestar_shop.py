"""Litestar: plain handlers with a session, and a worker and a dashboard in the service."""

import os
from typing import Any

from litestar import Litestar, asgi, get, post
from litestar.exceptions import NotFoundException
from sqlalchemy import create_engine, text
from sqlalchemy.orm import sessionmaker

from evenflow import Evenflow, JobNotFound
from evenflow.contrib.asgi import lifespan, mounted

URL = os.environ.get("DATABASE_URL", "sqlite:///shop.db")
jobs = Evenflow(URL)
engine = create_engine(URL.replace("postgresql://", "postgresql+psycopg://"))
make_session = sessionmaker(engine)


@jobs.task(queue="mail")
def welcome(address: str) -> str:
    return f"hello {address}"


@post("/users/{address:str}", sync_to_thread=True)
def sign_up(address: str) -> dict[str, str]:
    with make_session.begin() as session:
        session.execute(text("insert into shop_user values (:address)"), {"address": address})
        return {"job": welcome.using(connection=session).enqueue(address).id}


@get("/jobs/{job_id:str}", sync_to_thread=True)
def look(job_id: str) -> dict[str, Any]:
    try:
        return {"result": jobs.job(job_id).result(timeout=10)}
    except JobNotFound as missing:
        raise NotFoundException(str(missing)) from missing


def make_tables() -> None:
    with engine.begin() as connection:
        connection.execute(text("create table if not exists shop_user (address text primary key)"))


# answers this machine alone; give it auth= to open it to others
dashboard = asgi("/dashboard", is_mount=True, copy_scope=True)(mounted(jobs.web(), "/dashboard"))
service = Litestar(
    [sign_up, look, dashboard], lifespan=[lifespan(jobs, concurrency=4)], on_startup=[make_tables]
)
