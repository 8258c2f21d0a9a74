"""An order and the job that ships it, in one session of SQLAlchemy: both are stored, or none is."""

import os

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from evenflow import Evenflow

URL = os.environ.get("DATABASE_URL", "sqlite:///shop.db")
jobs = Evenflow(URL)
engine = create_engine(URL.replace("postgresql://", "postgresql+psycopg://"))
make_session = sessionmaker(engine)


class Base(DeclarativeBase):
    """All tables of the shop."""


class Order(Base):
    """What somebody wants."""

    __tablename__ = "shop_order"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    state: Mapped[str] = mapped_column(default="new")


@jobs.task(queue="shop")
def ship(order_id: int) -> str:
    with make_session.begin() as session:
        order = session.get_one(Order, order_id)
        order.state = "shipped"
        return order.item


def place_order(session: Session, item: str) -> str:
    """Add an order and its job to the session's transaction; the job's id."""
    order = Order(item=item)
    session.add(order)
    session.flush()  # gives the order its number
    return ship.using(connection=session).enqueue(order.id).id


def prepare() -> None:
    """Tables of the shop and of its jobs."""
    Base.metadata.create_all(engine)
    jobs.migrate()


def main() -> None:
    prepare()
    with make_session.begin() as session:
        kept = place_order(session, "a book")
    with make_session() as session:
        place_order(session, "a regret")
        session.rollback()
    jobs.run_worker(until_empty=True)
    print(f"shipped {jobs.job(kept).result(timeout=10)}")
    with make_session() as session:
        print(f"orders: {[(order.item, order.state) for order in session.query(Order).all()]}")


if __name__ == "__main__":
    main()
