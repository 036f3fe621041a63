"""Errors that a user can mend: shown as one line, exit status 2."""


class UserError(Exception):
    """A user's mistake: the message says what is wrong, where, and the mend, in one line."""


class ConfigError(UserError):
    """A key or value of the config that cannot be."""


class DataError(UserError):
    """A file, corpus or vocabulary that is missing or malformed."""


class RunError(UserError):
    """A run's folder that cannot be used as asked."""


class Interrupted(Exception):
    """A signal ended the command in good order: shown as one line, exit status 128 + signal."""

    def __init__(self, signal: int, message: str):
        super().__init__(message)
        self.status = 128 + signal
