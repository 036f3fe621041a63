"""Errors that a user can fix; a command reports them in one line, and exits with their status."""

import re


class UserError(Exception):
    """A user's mistake: the message says in one line what is wrong, where, and how to fix it."""

    status = 2

    def __str__(self) -> str:
        """The message, in which control characters are seen: a script may end a name with a CR."""
        shown = super().__str__()
        return re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", lambda x: f"\\x{ord(x[0]):02x}", shown)


class ConfigError(UserError):
    """An invalid key or value of the config."""


class MissingProcess(UserError):
    """Other processes of this run did not come. The same command may succeed later."""

    status = 75  # EX_TEMPFAIL of sysexits.h


class DataError(UserError):
    """A file, corpus or vocabulary that is missing or malformed."""


class RunError(UserError):
    """A run's folder that cannot be used as asked."""


class Interrupted(Exception):
    """A signal stopped the command cleanly; it exits with status 128 + signal after one line."""

    def __init__(self, signal: int, message: str):
        super().__init__(message)
        self.status = 128 + signal
