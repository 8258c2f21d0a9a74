-- PostgreSQL keeps room in its pages for the versions that claims write. SQLite changes rows where they are.
select 1;
