"""The project that the tests of the Django backend run in: its settings, its databases and how they are changed."""

from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import django
from django.conf import settings
from django.db import connections

BACKEND = "evenflow.contrib.django.EvenflowBackend"
TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"]}}
APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.admin",
    "evenflow.contrib.django",
    "tests.contrib.django.shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
PROCESSORS = [
    "django.template.context_processors.request",
    "django.contrib.auth.context_processors.auth",
    "django.contrib.messages.context_processors.messages",
]


def database(url: str) -> dict[str, Any]:
    """What DATABASES says for an address."""
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": path,
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
        }
    parts = urlsplit(url)
    host = parse_qs(parts.query).get("host", [parts.hostname or ""])[0]
    return {
        "ENGINE": "django.db.backends.postgresql", "NAME": parts.path[1:], "HOST": unquote(host),
        "USER": parts.username or "", "PASSWORD": parts.password or "", "PORT": str(parts.port or ""),
    }  # fmt: skip


def configure() -> None:
    """Set Django up, once in a process."""
    if settings.configured:
        return
    nowhere = {"ENGINE": "django.db.backends.sqlite3", "NAME": "/nonexistent/never-opened.db"}
    settings.configure(
        DATABASES={"default": nowhere, "other": nowhere},
        DATABASE_ROUTERS=[],
        INSTALLED_APPS=APPS,
        # Tables come straight from the models: the history of Django's own is not what is tested.
        MIGRATION_MODULES=dict.fromkeys(("contenttypes", "auth", "sessions", "admin", "shop")),
        MIDDLEWARE=MIDDLEWARE,
        ROOT_URLCONF="tests.contrib.django.urls",
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {"context_processors": PROCESSORS},
            }
        ],
        STATIC_URL="/static/",
        ALLOWED_HOSTS=["*"],
        SECRET_KEY="only for tests",
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        LOGGING_CONFIG=None,
        USE_TZ=True,
        TIME_ZONE="UTC",
        LANGUAGE_CODE="en-us",
        TASKS=TASKS,
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    )
    django.setup()


def point(alias: str, url: str) -> None:
    """Let an alias of DATABASES mean the database at this address, in every thread that connects from now on."""
    if hasattr(connections._connections, alias):
        connections[alias].close()
        del connections[alias]
    connections.settings[alias] = connections.configure_settings(
        {alias: database(url), **({} if alias == "default" else {"default": database(url)})}
    )[alias]
