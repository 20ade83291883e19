"""Near-duplicates: dropped rows are proven by an exact comparison, and nearly all that should be dropped are."""

from __future__ import annotations

import random
import sys
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.commit.index.scratch import Scratch
from pipeline.errors import ResourceError
from pipeline.selection.near_duplicates import NearDuplicates, jaccard, shingles
from pipeline.selection.settings import DedupConfig


def found(texts: list[str], **fields: object) -> list[tuple[int, int, float]]:
    scratch = Scratch()
    scratch.run("CREATE TABLE texts (ordinal INTEGER PRIMARY KEY, text TEXT)")
    scratch.write("INSERT INTO texts VALUES (?, ?)", enumerate(texts))
    try:
        return list(NearDuplicates(scratch, DedupConfig(**fields)).duplicates(enumerate(texts)))  # type: ignore[arg-type]
    finally:
        scratch.close()


def corpus(count: int, seed: int) -> list[str]:
    """Texts of 60 words; a third are copies of earlier ones with 0 to 6 words changed."""
    rng, texts = random.Random(seed), list[list[str]]()
    for _ in range(count):
        words = [f"w{rng.randrange(5000)}" for _ in range(60)]
        if texts and rng.random() < 0.33:
            words = list(rng.choice(texts))
            for place in rng.sample(range(60), rng.randrange(7)):
                words[place] = f"w{rng.randrange(5000)}"
        texts.append(words)
    return [" ".join(words) for words in texts]


def test_each_dropped_row_is_like_a_kept_one_before_it_and_hardly_any_two_kept_rows_are_alike() -> None:
    texts = corpus(300, seed=1)
    sets = [shingles(text, 3) for text in texts]
    dropped = found(texts, threshold=0.7)
    gone = {row for row, _, _ in dropped}
    assert len(gone) > 40
    for row, other, similarity in dropped:
        assert other < row, "the better one is kept"
        assert other not in gone
        assert similarity == jaccard(sets[row], sets[other]) >= 0.7
    kept = [row for row in range(len(texts)) if row not in gone]
    alike = [pair for pair in combinations(kept, 2) if jaccard(sets[pair[0]], sets[pair[1]]) >= 0.7]
    every = [pair for pair in combinations(range(len(texts)), 2) if jaccard(sets[pair[0]], sets[pair[1]]) >= 0.7]
    assert len(alike) <= 0.1 * len(every), "recall at the threshold is above 0.9, and above it is higher"


def test_no_chain_of_likenesses_drops_a_row_that_is_like_no_kept_one() -> None:
    words = [f"w{i}" for i in range(60)]
    chain = [" ".join(words[i : i + 30]) for i in (0, 3, 6, 9)]  # neighbours are alike, the ends are not
    sets = [shingles(text, 1) for text in chain]
    assert jaccard(sets[0], sets[1]) > 0.8 > jaccard(sets[0], sets[2])
    assert [(row, other) for row, other, _ in found(chain, threshold=0.8, ngram=1)] == [(1, 0), (3, 2)]


def test_equal_texts_are_always_found_however_many_and_however_short() -> None:
    assert [(row, other) for row, other, _ in found(["yes"] * 50)] == [(row, 0) for row in range(1, 50)]
    assert [row for row, _, _ in found(["", "", "a", "!", "!"])] == [1, 4]


def test_case_and_punctuation_do_not_count_and_cjk_characters_are_words() -> None:
    assert shingles("The cat, the CAT!", 2) == {"the cat", "cat the"}
    assert shingles("答案是 42", 2) == {"答 案", "案 是", "是 42"}
    assert shingles("one two", 3) == {"one two"}


@given(st.sets(st.integers(0, 20)), st.sets(st.integers(0, 20)))
def test_the_jaccard_similarity_is_that_of_the_definition(one: set[int], other: set[int]) -> None:
    a, b = frozenset(map(str, one)) | {"x"}, frozenset(map(str, other)) | {"x"}
    assert jaccard(a, b) == len(a & b) / len(a | b)


def test_without_datasketch_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasketch", None)
    with pytest.raises(ResourceError, match=r'pip install "wedlm-batch\[filter\]"'):
        found(["a"])
