"""The only place that speaks SQL: engines, named statements, migrations, and the operations of a job's life."""
