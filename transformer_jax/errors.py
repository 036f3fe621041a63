"""Errors that a user can fix; a command reports them in one line and exits with status 2."""


class UserError(Exception):
    """A user's mistake: the message says in one line what is wrong, where, and how to fix it."""


class ConfigError(UserError):
    """An invalid key or value of the config."""


class DataError(UserError):
    """A file, corpus or vocabulary that is missing or malformed."""


class RunError(UserError):
    """A run's folder that cannot be used as asked."""


class Interrupted(Exception):
    """A signal stopped the command cleanly; it exits with status 128 + signal after one line."""

    def __init__(self, signal: int, message: str):
        super().__init__(message)
        self.status = 128 + signal
