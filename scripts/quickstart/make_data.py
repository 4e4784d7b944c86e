#!/usr/bin/env python3
"""Writes the quickstart data set: spoken house requests -> house commands.

    python3 scripts/quickstart/make_data.py            write data/quickstart/*.jsonl
    python3 scripts/quickstart/make_data.py --check    exit 1 if the files differ from what this script makes

The output is a pure function of this file: one seed, and no use of `random` beyond `Random.random()`, the one
method whose sequence Python promises to keep across versions. Only the standard library is needed.

A request is built from a clause ("dim the study lights to 40 percent"), sometimes a time ("at 7:30 pm") or a second
clause, and a way of asking. A command is `device place: action [value] [when]`; two commands are joined by "; ".
data/quickstart/README.md describes the language.
"""

import argparse
import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path

SEED = 20261130
TRAIN_SAMPLES = 600
HELDOUT_SAMPLES = 64
SYSTEM = "Turn the request into house commands."
FOLDER = Path(__file__).resolve().parents[2] / "data" / "quickstart"

# Share of samples with a second clause, and of one-clause samples with a time.
COMPOUND_SHARE = 0.18
WHEN_SHARE = 0.5

# Chance that a held-out draw takes its places, or its values, from the words that training never sees. Draws that ask
# for something training asks for are thrown away, so the share of unseen words in the file is higher than this.
UNSEEN_PLACE_SHARE = 0.35
UNSEEN_VALUE_SHARE = 0.5


@dataclass(frozen=True)
class Words:
    """The vocabulary of one split. `places` and `doors` are spelt alike in requests and commands."""

    places: tuple
    doors: tuple
    percents: tuple
    degrees: tuple
    colors: tuple
    genres: tuple


TRAIN = Words(
    places=(
        "kitchen", "hallway", "study", "nursery", "attic", "garage", "cellar", "bathroom", "bedroom", "office",
        "den", "landing", "porch", "living room", "dining room", "guest room", "laundry room", "playroom",
    ),
    doors=("front", "back", "side", "garage", "patio", "cellar", "shed", "porch"),
    percents=(5, 10, 15, 20, 25, 30, 40, 45, 50, 60, 70, 75, 80, 90),
    degrees=(16, 17, 18, 19, 20, 21, 23, 24),
    colors=("red", "blue", "green", "amber", "white", "violet"),
    genres=("jazz", "rock", "opera", "folk", "blues", "soul"),
)

# No place here may be named after a device: "the music in the music room" tests something else.
UNSEEN = Words(
    places=("library", "pantry", "workshop", "sunroom", "tea room", "utility room"),
    doors=("balcony", "basement", "garden"),
    percents=(35, 55, 65, 85),
    degrees=(15, 22, 25),
    colors=("pink", "orange"),
    genres=("techno", "reggae"),
)

# (device, action, weight, ways to say it). Fields: p place, d door, n percent, t degrees, k speed, c colour, g genre.
INTENTS = (
    ("light", "on", 3, (
        "turn on the {p} lights", "switch the {p} lights on", "light up the {p}", "put the lights on in the {p}")),
    ("light", "off", 3, (
        "turn off the {p} lights", "switch off the lights in the {p}", "kill the {p} lights",
        "put out the lights in the {p}")),
    ("light", "dim {n}", 3, (
        "dim the {p} lights to {n} percent", "set the lights in the {p} to {n}%",
        "bring the {p} lights down to {n} percent")),
    ("light", "color {c}", 2, (
        "make the {p} lights {c}", "turn the lights in the {p} {c}", "change the {p} lights to {c}")),
    ("blind", "open", 2, (
        "open the blinds in the {p}", "raise the {p} blinds", "let some daylight into the {p}")),
    ("blind", "close", 2, (
        "close the {p} blinds", "lower the blinds in the {p}", "shut the blinds in the {p}")),
    ("blind", "set {n}", 2, (
        "set the {p} blinds to {n} percent", "put the blinds in the {p} at {n}%")),
    ("heat", "set {t}", 3, (
        "heat the {p} to {t} degrees", "warm up the {p} to {t} degrees", "make it {t} degrees in the {p}",
        "keep the {p} at {t} degrees")),
    ("heat", "off", 2, (
        "turn off the heating in the {p}", "stop heating the {p}", "switch the {p} heating off")),
    ("fan", "on", 2, (
        "start the fan in the {p}", "turn on the {p} fan", "air out the {p}")),
    ("fan", "off", 2, (
        "stop the {p} fan", "turn off the fan in the {p}")),
    ("fan", "speed {k}", 2, (
        "set the {p} fan to speed {k}", "run the fan in the {p} at speed {k}")),
    ("door", "lock", 2, (
        "lock the {d} door", "make sure the {d} door is locked", "bolt the {d} door")),
    ("door", "unlock", 2, (
        "unlock the {d} door", "let me in at the {d} door", "leave the {d} door unlocked")),
    ("music", "play {g}", 3, (
        "play {g} in the {p}", "put on some {g} in the {p}", "fill the {p} with {g}")),
    ("music", "off", 2, (
        "stop the music in the {p}", "turn off the music in the {p}")),
    ("music", "volume {n}", 2, (
        "set the {p} music to {n} percent", "turn the music in the {p} to {n}%")),
)

# What may run for a while ("for 45 minutes"); the rest only happens at a moment.
LASTING = ("on", "dim {n}", "color {c}", "set {t}", "speed {k}", "play {g}")

ASKING = (
    "{}.", "{}.", "{}", "Please {}.", "Could you {}?", "Can you {}?", "Hey, {}.", "I want you to {}.", "{}, please.",
    "Would you {}?",
)
JOINING = ("{} and {}", "{}, then {}", "{} and also {}")

MINUTES = (5, 10, 15, 20, 25, 30, 40, 45, 50)


class Draw:
    """Choices from one seeded stream, through `Random.random()` alone."""

    def __init__(self, seed):
        self.random = random.Random(seed).random

    def one(self, items):
        return items[int(self.random() * len(items))]

    def chance(self, share):
        return self.random() < share

    def weighted(self, items, weight):
        left = self.random() * sum(map(weight, items))
        for item in items:
            left -= weight(item)
            if left < 0:
                return item
        return items[-1]


def clock(draw):
    """A time of day, as spoken and as written: the two are the same, such as "7:30 pm"."""
    hour = 1 + int(draw.random() * 12)
    minute = draw.one((0, 0, 15, 30, 45))
    return f"{hour}{f':{minute:02}' if minute else ''} {draw.one(('am', 'pm'))}"


def span(draw):
    """A length of time, (as spoken, as "20m")."""
    if draw.chance(0.25):
        return "half an hour", "30m"
    minutes = draw.one(MINUTES)
    return f"{minutes} minutes", f"{minutes}m"


def when(draw, lasting):
    """A time for a clause: (as spoken, as written, whether it may open the sentence). `lasting` allows "for"."""
    kind = draw.random()
    if kind < 0.5:
        time = clock(draw)
        return f"at {time}", f"at {time}", True
    if kind < 0.65:
        time = clock(draw)
        return f"every day at {time}", f"daily {time}", True
    spoken, written = span(draw)
    if lasting and kind > 0.82:
        return f"for {spoken}", f"for {written}", False
    return f"in {spoken}", f"in {written}", True


@dataclass(frozen=True)
class Clause:
    """One request for one device. `key` names what it asks for, apart from the wording and the time."""

    spoken: str
    command: str
    key: tuple
    lasting: bool


def clause(draw, values, places, doors):
    device, action, _, wordings = draw.weighted(INTENTS, lambda intent: intent[2])
    place = draw.one(doors if device == "door" else places)
    fields = {
        "p": place, "d": place, "n": draw.one(values.percents), "t": draw.one(values.degrees),
        "k": 1 + int(draw.random() * 5), "c": draw.one(values.colors), "g": draw.one(values.genres),
    }
    written = f"{device} {place}: {action.format(**fields)}"
    return Clause(draw.one(wordings).format(**fields), written, (device, place, action.format(**fields)),
                  action in LASTING)


def request(draw, make_clause):
    """One sample: (user text, command text, the keys of its clauses)."""
    first = make_clause()
    if draw.chance(COMPOUND_SHARE):
        second = make_clause()
        spoken = draw.one(JOINING).format(first.spoken, second.spoken)
        return ask(draw, spoken), f"{first.command}; {second.command}", (first.key, second.key)
    if not draw.chance(WHEN_SHARE):
        return ask(draw, first.spoken), first.command, (first.key,)
    spoken, written, may_open = when(draw, first.lasting)
    if may_open and draw.chance(0.25):
        text = f"{spoken[0].upper()}{spoken[1:]}, {first.spoken}."
    else:
        text = ask(draw, f"{first.spoken} {spoken}")
    return text, f"{first.command} {written}", (first.key,)


def ask(draw, spoken):
    text = draw.one(ASKING).format(spoken)
    return text[0].upper() + text[1:]


def train_split(draw):
    samples, seen = [], set()
    while len(samples) < TRAIN_SAMPLES:
        text, command, keys = request(draw, lambda: clause(draw, TRAIN, TRAIN.places, TRAIN.doors))
        if text not in seen:
            seen.add(text)
            samples.append((text, command, keys))
    return samples


def heldout_split(draw, train, count=HELDOUT_SAMPLES):
    """Held-out samples: no clause asks for anything (device, place, action and value) that training asks for."""
    known = {key for _, _, keys in train for key in keys}
    taken = {text for text, _, _ in train}
    samples = []
    while len(samples) < count:
        words = UNSEEN if draw.chance(UNSEEN_PLACE_SHARE) else TRAIN
        values = UNSEEN if draw.chance(UNSEEN_VALUE_SHARE) else TRAIN
        text, command, keys = request(draw, lambda: clause(draw, values, words.places, words.doors))
        if text not in taken and known.isdisjoint(keys):
            taken.add(text)
            samples.append((text, command, keys))
    return samples


def lines(samples):
    for text, command, _ in samples:
        messages = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": text},
            {"role": "assistant", "content": command},
        ]
        yield json.dumps({"messages": messages}) + "\n"


def files():
    """The data set: file name -> bytes."""
    draw = Draw(SEED)
    train = train_split(draw)
    heldout = heldout_split(draw, train)
    return {
        "train.jsonl": "".join(lines(train)).encode(),
        "heldout.jsonl": "".join(lines(heldout)).encode(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the files instead of writing them")
    check = parser.parse_args().check
    stale = []
    for name, content in files().items():
        path = FOLDER / name
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        elif not path.is_file() or path.read_bytes() != content:
            stale.append(path)
    for path in stale:
        print(f"{path}: differs from what {Path(__file__).name} makes; run it without --check", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
