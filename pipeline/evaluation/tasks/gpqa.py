"""GPQA (Idavidrein/gpqa, such as its diamond subset): hard science questions; worked answers that end in a letter.

The data set has the right answer first. Its place among the choices follows from the length of the question, so it is the
same in every run, and about even over the places.
"""

from __future__ import annotations

from pipeline.evaluation.letters import chosen_letter
from pipeline.evaluation.task import Row, Task, Verdict

__all__ = ["TASKS"]

_RIGHT, _WRONG = "Correct Answer", [f"Incorrect Answer {number}" for number in (1, 2, 3)]


def _judge(row: Row, text: str) -> Verdict:
    expected = "ABCD"[len(row["Question"]) % 4]
    found = chosen_letter(text, "ABCD")
    return Verdict.of(found, expected, found == expected)


def _example(question: str, right: str, wrong: tuple[str, str, str], explanation: str) -> Row:
    return {"Question": question, _RIGHT: right, **dict(zip(_WRONG, wrong, strict=True)), "Explanation": explanation}


TASKS = (
    Task(
        name="gpqa",
        about="hard science questions: Question, Correct Answer, Incorrect Answer 1 to 3",
        columns=("Question", _RIGHT, *_WRONG),
        instruction="Work each question out. End with #### and the letter of the right choice.\n\n",
        question="Question: {{ row['Question'] }}\n{% set right = (row['Question'] | length) % 4 %}"
        "{% for place in range(4) %}{{ 'ABCD'[place] }}) {% if place == right %}{{ row['Correct Answer'] }}"
        "{% else %}{{ row['Incorrect Answer ' ~ (place + 1 if place < right else place)] }}{% endif %}\n{% endfor %}"
        "Answer:\n",
        solution="{{ row['Explanation'] }}\n#### {{ 'ABCD'[(row['Question'] | length) % 4] }}",
        examples=(
            _example(
                "A gas in a rigid vessel is heated from 300 K to 450 K. By what factor does its pressure rise, if it "
                "is ideal?",
                "1.5",
                ("2.25", "0.67", "3"),
                "At constant volume the pressure of an ideal gas is proportional to the temperature in kelvin: "
                "450 / 300 = 1.5.",
            ),
            _example(
                "How many stereoisomers does a molecule with two different stereocentres and no symmetry have?",
                "4",
                ("2", "3", "8"),
                "Each centre has two configurations, and without symmetry none coincide: 2 * 2 = 4.",
            ),
            _example(
                "The light of a galaxy has a redshift of z = 0.5. A line with a rest wavelength of 400 nm is observed "
                "where?",
                "600 nm",
                ("450 nm", "267 nm", "800 nm"),
                "The observed wavelength is (1 + z) times that at rest: 1.5 * 400 nm = 600 nm.",
            ),
            _example(
                "Two heterozygous carriers of a recessive disease have a child without the disease. How likely is it "
                "a carrier?",
                "2/3",
                ("1/2", "1/4", "3/4"),
                "Of the four equally likely genotypes one is affected and is ruled out. Two of the other three are "
                "carriers: 2/3.",
            ),
            _example(
                "A particle moves in a one-dimensional box whose width is doubled. What becomes of the energy of its "
                "ground state?",
                "It falls to a quarter.",
                ("It halves.", "It doubles.", "It stays as it is."),
                "The energy is proportional to 1 / L^2, so with 2 L it is a quarter.",
            ),
        ),
        shots=5,
        max_tokens=512,
        temperature=0.1,
        stop=("Question:",),
        judge=_judge,
    ),
)
