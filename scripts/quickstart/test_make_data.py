"""Properties of the quickstart data set, read back from the committed files.

    python3 -m unittest discover -s scripts/quickstart
"""

import json
import re
import unittest

import make_data

WHEN = r"(at|daily) (1[0-2]|[1-9])(:[0-5]\d)? [ap]m|(in|for) [1-9]\d*m"
ACTIONS = {
    "light": r"on|off|dim \d{1,2}|color [a-z]+",
    "blind": r"open|close|set \d{1,2}",
    "heat": r"off|set \d{2}",
    "fan": r"on|off|speed [1-5]",
    "door": r"lock|unlock",
    "music": r"off|play [a-z]+|volume \d{1,2}",
}
COMMAND = re.compile(
    "|".join(rf"(?:{device} [a-z ]+: (?:{actions})(?: (?:{WHEN}))?)" for device, actions in ACTIONS.items()))


def load(name):
    return [json.loads(line)["messages"] for line in (make_data.FOLDER / name).read_text().splitlines()]


def wishes(messages):
    """What a sample's commands ask for, without their times."""
    return {re.sub(rf" ({WHEN})$", "", command) for command in messages[-1]["content"].split("; ")}


class DataSet(unittest.TestCase):
    def setUp(self):
        self.train, self.heldout = load("train.jsonl"), load("heldout.jsonl")

    def test_committed_files_are_what_the_script_makes(self):
        for name, content in make_data.files().items():
            self.assertEqual((make_data.FOLDER / name).read_bytes(), content, name)

    def test_sizes_and_roles(self):
        self.assertEqual(len(self.train), make_data.TRAIN_SAMPLES)
        self.assertEqual(len(self.heldout), make_data.HELDOUT_SAMPLES)
        for messages in self.train + self.heldout:
            self.assertEqual([message["role"] for message in messages], ["system", "user", "assistant"])

    def test_every_answer_is_in_the_language(self):
        for messages in self.train + self.heldout:
            for command in messages[-1]["content"].split("; "):
                self.assertRegex(command, rf"\A(?:{COMMAND.pattern})\Z")

    def test_the_grammar_refuses_other_text(self):
        for text in ("light kitchen", "light kitchen: dim", "oven kitchen: on", "light kitchen: on at 7:30", "on"):
            self.assertIsNone(COMMAND.fullmatch(text), text)

    def test_no_request_twice(self):
        requests = [messages[1]["content"] for messages in self.train + self.heldout]
        self.assertEqual(len(requests), len(set(requests)))

    def test_heldout_asks_for_nothing_that_training_asks_for(self):
        known = set().union(*map(wishes, self.train))
        for messages in self.heldout:
            self.assertTrue(known.isdisjoint(wishes(messages)), messages[1]["content"])

    def test_training_never_mentions_the_unseen_words(self):
        unseen = make_data.UNSEEN
        words = unseen.places + unseen.colors + unseen.genres + tuple(f"{door} door" for door in unseen.doors)
        spoken = " ".join(messages[1]["content"].lower() for messages in self.train)
        for word in words:
            self.assertNotIn(word, spoken)


if __name__ == "__main__":
    unittest.main()
