"""The dashboard and its JSON API: an ASGI application over one Evenflow app. Needs the extra `web`.

>>> from evenflow.web import Basic, Token                       # doctest: +SKIP
>>> site = app.web(auth=[Basic("ann", "secret", "operator")])   # doctest: +SKIP
"""

from evenflow.web.access import Basic, Permission, Principal, Role, Token

__all__ = ["Basic", "Permission", "Principal", "Role", "Token"]
