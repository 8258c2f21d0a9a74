"""Django's migrations: they say that the models have no tables. Evenflow's own tables have migrations of their own."""
