"""Requests to an assistant, made up from a few phrases: nothing is downloaded."""

import random

REQUESTS = {
    "lights": (
        "turn {the} {room} lights {on or off}",
        "make it {brighter} in the {room}",
        "is the lamp in the {room} still {on or off}",
    ),
    "music": (
        "play {some} {style} in the {room}",
        "turn the {style} {louder}",
        "stop the music in the {room}",
    ),
    "heating": (
        "make it {warmer} in the {room}",
        "turn {the} {room} heating {on or off}",
        "how warm is it in the {room}",
    ),
    "weather": (
        "is it {warmer} {day}",
        "will it {rain} {day}",
        "how warm is it {day}",
    ),
}
WORDS = {
    "the": ("the", "my", "all the"),
    "some": ("some", "a bit of", "loud"),
    "room": ("kitchen", "bedroom", "hall", "bathroom", "living room"),
    "on or off": ("on", "off"),
    "brighter": ("brighter", "darker"),
    "louder": ("louder", "down", "off"),
    "style": ("jazz", "techno", "blues", "piano music"),
    "warmer": ("warmer", "cooler", "colder"),
    "day": ("today", "tomorrow", "on sunday", "outside"),
    "rain": ("rain", "snow", "stay dry"),
}
INTENTS = tuple(REQUESTS)


def make_requests(count: int, seed: int) -> tuple[list[str], list[int]]:
    """Return requests, and for each the position of its intent in `INTENTS`."""
    random_ = random.Random(seed)
    intents = [random_.randrange(len(INTENTS)) for _ in range(count)]
    return [make_request(INTENTS[intent], random_) for intent in intents], intents


def make_request(intent: str, random_: random.Random) -> str:
    """Return a request such as ``"play some jazz in the hall"``."""
    words = {slot: random_.choice(choices) for slot, choices in WORDS.items()}
    return random_.choice(REQUESTS[intent]).format_map(words)


def vocabulary() -> list[str]:
    """Return all words there are."""
    phrases = [phrase for phrases in REQUESTS.values() for phrase in phrases]
    choices = [choice for choices in WORDS.values() for choice in choices]
    words = {word for text in phrases + choices for word in text.split()}
    return sorted(word for word in words if word.isalpha())
