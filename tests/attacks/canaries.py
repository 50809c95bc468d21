"""Private texts that nobody can have said but the device they are planted on.

A canary's words are invented and follow from a name, so every case has its own, and one of them in
a byte from elsewhere is a leak. They all begin alike, which makes looking for them quick.
`found_in` sees them in the clear, and as JSON, a URL, base64, hexadecimal digits or UTF-16 would
carry them.
"""

import base64
import hashlib
import json
from pathlib import Path
from urllib.parse import quote

MARKER = "zvexu"
CONSONANTS, VOWELS = "bcdfghjklmnpqrstvwxz", "aeiou"
WORDS = 6


class Canary:
    """A private text and its recognisable parts.

    Args:
        name: Equal names give equal canaries.
    """

    def __init__(self, name: str) -> None:
        self.words = tuple(_word(f"{name} {place}") for place in range(WORDS))
        self.other = f"{_word(name)}éß水"  # a word that JSON and URLs escape
        self.sentence = " ".join([*self.words, self.other])

    def found_in(self, body: bytes, *paths: Path) -> list[str]:
        """What of the canary, and which of some paths, can be recognised in some bytes."""
        lower = body.lower()
        digest = hashlib.sha256(self.sentence.encode()).hexdigest()  # whoever guesses it can check
        parts = [*map(str, paths), digest[:16]]
        if _is_in(MARKER, body, lower):
            parts += [*self.words, self.other]
        return [part for part in parts if _is_in(part, body, lower)]


def _word(seed: str) -> str:
    """An invented word."""
    digest = hashlib.sha256(seed.encode()).digest()[:4]
    return MARKER + "".join(CONSONANTS[byte % 20] + VOWELS[byte // 20 % 5] for byte in digest)


def _is_in(part: str, body: bytes, lower: bytes) -> bool:
    return any(form.lower() in lower for form in forms(part)) or any(
        form in body for form in base64_forms(part.encode())
    )


def forms(text: str) -> set[bytes]:
    """A text as it may stand in bytes that do not hide it; letters may be of either case."""
    escaped = {text, json.dumps(text)[1:-1], ascii(text)[1:-1], quote(text), quote(text, safe="")}
    raw = {text.encode("utf-16-le"), text.encode("utf-16-be"), text.encode().hex().encode()}
    return raw | {form.encode() for form in escaped}


def base64_forms(part: bytes) -> set[bytes]:
    """What is in the base64 of every text that holds this part, wherever in it that begins."""
    found = set()
    for before in range(3):
        whole = base64.b64encode(bytes(before) + part)
        found.add(whole[-(-before * 8 // 6) : (before + len(part)) * 8 // 6])
    return found | {form.translate(bytes.maketrans(b"+/", b"-_")) for form in found}
