"""What is told to a person when something they asked for cannot be done?"""


class UserError(Exception):
    """Bad input: one clear line, a hint that says what to do, exit code 2."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def advice(self) -> str:
        """Message and hint in one sentence."""
        return f"{self.message} ({self.hint})" if self.hint else self.message
