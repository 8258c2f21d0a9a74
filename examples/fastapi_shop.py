"""FastAPI: the request's async session carries the job, and the service runs its worker and its dashboard itself."""

import contextlib
import os
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Depends, FastAPI
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from evenflow import Evenflow, JobNotFound
from evenflow.contrib.asgi import lifespan

URL = os.environ.get("DATABASE_URL", "sqlite:///shop.db")
DRIVERS = {"postgresql://": "postgresql+psycopg://", "sqlite://": "sqlite+aiosqlite://"}
jobs = Evenflow(URL)
scheme = next(each for each in DRIVERS if URL.startswith(each))
engine = create_async_engine(URL.replace(scheme, DRIVERS[scheme], 1))
make_session = async_sessionmaker(engine)


@jobs.task(queue="mail")
async def welcome(address: str) -> str:
    return f"hello {address}"


@contextlib.asynccontextmanager
async def tables(_: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.execute(text("create table if not exists shop_user (address text primary key)"))
    yield
    await engine.dispose()


service = FastAPI(lifespan=lifespan(jobs, concurrency=4, inside=tables))
service.mount("/dashboard", jobs.web())  # answers this machine alone; give it auth= to open it to others


async def request_session() -> AsyncIterator[AsyncSession]:
    async with make_session.begin() as session:
        yield session


@service.post("/users/{address}")
async def sign_up(address: str, session: Annotated[AsyncSession, Depends(request_session)]) -> dict[str, str]:
    await session.execute(text("insert into shop_user values (:address)"), {"address": address})
    job = await welcome.using(connection=session).aenqueue(address)
    return {"job": job.id}


@service.get("/jobs/{job_id}")
async def look(job_id: str) -> dict[str, Any]:
    try:
        return {"state": jobs.job(job_id).state, "result": await jobs.job(job_id).aresult(timeout=10)}
    except JobNotFound:
        return {"state": "unknown", "result": None}
