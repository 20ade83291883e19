"""HellaSwag (Rowan/hellaswag): which of four endings continues a text; the letter counts."""

from __future__ import annotations

from pipeline.evaluation.letters import chosen_letter, letter_of
from pipeline.evaluation.task import Row, Task, Verdict

__all__ = ["TASKS"]


def _judge(row: Row, text: str) -> Verdict:
    letters = "ABCD"[: len(row["endings"])]
    found, expected = chosen_letter(text, letters), letter_of(row["label"], [None] * len(letters))
    return Verdict.of(found, expected, found is not None and found == expected)


def _example(ctx: str, label: int, *endings: str) -> Row:
    return {"ctx": ctx, "endings": list(endings), "label": str(label)}


TASKS = (
    Task(
        name="hellaswag",
        about='which ending fits: ctx, endings (a list of four), label ("0" to "3")',
        columns=("ctx", "endings", "label"),
        instruction="Choose the ending that continues each text best. Answer with its letter.\n\n",
        question="{{ ctx }}\n{% for ending in endings %}{{ 'ABCD'[loop.index0] }}. {{ ending }}\n{% endfor %}Answer:",
        solution=" {{ 'ABCD'[label | int] }}",
        examples=(
            _example(
                "A girl ties the laces of her skates and steps onto the ice. She",
                2,
                "bakes a loaf of bread.",
                "opens an umbrella over the stove.",
                "glides slowly along the edge of the rink.",
                "reads the newspaper to a goldfish.",
            ),
            _example(
                "A man puts a ladder against the apple tree. He",
                0,
                "climbs up with a basket on his arm.",
                "paints the moon green.",
                "swims to the other shore.",
                "folds the tree and puts it away.",
            ),
            _example(
                "Two children fill a bucket with wet sand at the beach. They",
                3,
                "plug the bucket into the wall.",
                "send the ocean a letter.",
                "cut the sand with scissors.",
                "turn it over and lift it off a tower.",
            ),
            _example(
                "The cook cracks two eggs into a bowl. He",
                1,
                "drives them to the station.",
                "beats them with a fork.",
                "hangs them on the line.",
                "teaches them to sing.",
            ),
            _example(
                "A woman unrolls a mat on the floor of the gym. She",
                1,
                "plants carrots in it.",
                "lies down and stretches her legs.",
                "sells it to the ceiling.",
                "pours soup over it.",
            ),
            _example(
                "The dog sees the ball fly over the fence. It",
                0,
                "runs along the fence looking for a gap.",
                "writes its name on the ball.",
                "pays for the ticket.",
                "tunes the piano.",
            ),
            _example(
                "A boy pumps air into the flat tyre of his bicycle. He",
                2,
                "eats the pump with mustard.",
                "freezes the air in a jar.",
                "presses the tyre with his thumb to check it.",
                "marries the saddle.",
            ),
            _example(
                "Workers spread hot asphalt over the road. A roller",
                3,
                "asks them for the time.",
                "peels a potato.",
                "floats to the clouds.",
                "follows them and makes the surface flat.",
            ),
            _example(
                "A painter covers the furniture with sheets. Then she",
                0,
                "opens a can and stirs the paint.",
                "covers the paint with furniture.",
                "drinks the ladder.",
                "mails the ceiling home.",
            ),
            _example(
                "The pupils put their books away as the bell rings. They",
                2,
                "melt the bell for coins.",
                "sail the desk across the lake.",
                "stand up and walk to the door.",
                "grow feathers at noon.",
            ),
        ),
        shots=10,
        max_tokens=4,
        judge=_judge,
    ),
)
