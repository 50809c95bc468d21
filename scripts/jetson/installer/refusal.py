"""Why an install cannot go on: one line that says what to do."""


class Refusal(Exception):
    """Nothing was changed; the message is for people."""


def demand(holds: bool, message: str) -> None:
    if not holds:
        raise Refusal(message)
