-- On PostgreSQL what is in flight is found by its claims, so that a claim changes no index. SQLite has no rows that indexes do not
-- see, and keeps its index of what is in flight.
select 1;
