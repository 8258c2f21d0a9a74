"""At home in other frameworks. Each folder needs its framework, and nothing else imports it."""
