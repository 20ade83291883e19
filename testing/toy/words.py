"""Word lists of the toy problems. They are small, because a vocabulary of about 1,000 tokens must hold them."""

from __future__ import annotations

NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Ida", "Jack", "Kate", "Leo",
         "Mia", "Noah", "Olga", "Paul", "Rosa", "Sam", "Tom", "Vera")  # fmt: skip

CITIES = ("Paris", "London", "Rome", "Madrid", "Berlin", "Vienna", "Oslo", "Prague", "Lima", "Tokyo", "Cairo",
          "Boston")  # fmt: skip

ANIMALS = ("fox", "bear", "cat", "dog", "owl", "mouse", "rabbit", "horse", "duck", "wolf", "lion", "tiger", "frog",
           "goat", "sheep", "cow", "pig", "hen", "goose", "crow", "eagle", "deer", "otter", "beaver", "badger",
           "squirrel", "hedgehog", "turtle", "snake", "whale", "seal", "crab", "penguin", "parrot", "monkey",
           "elephant", "camel", "donkey", "zebra", "panda", "koala", "ant", "bee", "snail", "swan",
           "dolphin", "lizard", "kitten", "puppy", "mole")  # fmt: skip

ITEMS = ("apples", "books", "coins", "stamps", "pens", "shells", "cards", "eggs", "cups", "marbles")

PLACES = ("forest", "garden", "village", "park", "barn", "valley", "desert", "meadow", "castle", "harbor")

THINGS = ("key", "lamp", "map", "ring", "box", "bell", "hat", "drum")

WORDS = (
    "river", "stone", "cloud", "tree", "house", "light", "water", "fire", "wind", "snow", "rain", "star",
    "moon", "sun", "sea", "hill", "road", "door", "table", "chair", "bread", "milk", "salt", "rice", "corn",
    "leaf", "seed", "rose", "sand", "gold", "iron", "glass", "paper", "wool", "red", "blue", "green", "white",
    "black", "small", "big", "old", "new", "warm", "cold", "fast", "slow", "soft", "dark", "bright", "north",
    "south", "east", "west", "one", "two", "three", "four", "five", "six",
    *THINGS, *ANIMALS[:16],
)  # fmt: skip

CATEGORIES = {
    "fruits": ("apple", "pear", "plum", "grape", "cherry", "lemon", "melon", "banana", "peach", "fig"),
    "colors": ("red", "blue", "green", "white", "black", "yellow", "pink", "brown", "gray", "orange"),
    "animals": ANIMALS[:12],
    "cities": CITIES,
    "names": NAMES[:12],
    "things": (*THINGS, "table", "chair", "paper", "glass"),
}


def with_article(noun: str) -> str:
    """``a fox``, ``an owl``."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
