r"""MATH (hendrycks/competition_math and its 500-problem subset): answers in LaTeX; the last ``\boxed{}`` counts."""

from __future__ import annotations

from pipeline.evaluation.latex import boxed, same_latex
from pipeline.evaluation.task import Row, Task, Verdict

__all__ = ["TASKS"]


def _judge(row: Row, text: str) -> Verdict:
    solution = str(row["solution"])
    found, expected = boxed(text), boxed(solution)
    return Verdict.of(found, expected, same_latex(found, expected))


TASKS = (
    Task(
        name="math",
        about=r"competition problems: problem, solution (with \boxed{answer}), level, type",
        columns=("problem", "solution", "level", "type"),
        instruction="Solve each problem. Put the final answer into \\boxed{}.\n\n",
        question="Problem:\n{{ problem }}\nSolution:\n",
        solution="{{ solution }}",
        examples=(
            {
                "problem": "What is the sum of the solutions of $x^2 - 7x + 10 = 0$?",
                "solution": "The polynomial factors as $(x-2)(x-5)$, so the solutions are $2$ and $5$. Their sum is "
                "$\\boxed{7}$.",
            },
            {
                "problem": "Two fair dice are thrown. What is the probability that both show the same number?",
                "solution": "Of the $36$ outcomes $6$ are doubles, so the probability is $\\frac{6}{36} = "
                "\\boxed{\\frac{1}{6}}$.",
            },
            {
                "problem": "For which real $x$ is $\\sqrt{9 - x^2}$ defined?",
                "solution": "The radicand may not be negative: $9 - x^2 \\ge 0$, so $x^2 \\le 9$. That holds for $x \\in "
                "\\boxed{[-3,3]}$.",
            },
            {
                "problem": "A cube has a surface of $54$ square units. What is its volume?",
                "solution": "Each of the six faces has $54 / 6 = 9$ square units, so an edge is $3$ long. The volume is "
                "$3^3 = \\boxed{27}$.",
            },
        ),
        shots=4,
        max_tokens=1024,
        stop=("Problem:",),
        judge=_judge,
        group=lambda row: str(row["level"]),
    ),
)
