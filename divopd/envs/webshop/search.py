"""Full-text search with Lucene's BM25 as Anserini sets it: the ranking the original WebShop shows."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from divopd.envs.webshop.analyzer import tokens

Floats = npt.NDArray[np.float32]
Posting = tuple[npt.NDArray[np.int32] | None, Floats, np.float32]

RESULTS = 50
ONE = np.float32(1)
K1 = np.float32(0.9)
B = np.float32(0.4)
DENSE = 8  # a term of more than one in eight documents is kept as one number for every document


def stored_length(length: int) -> int:
    """A document's length as Lucene keeps it in one byte (SmallFloat.intToByte4 and back): four leading bits stay."""
    exact = 24  # lengths below this, and the first eight after it, are exact
    rest = length - exact
    if rest < 8:
        return length
    shift = rest.bit_length() - 4
    return exact + ((rest >> shift) << shift)


class Index:
    """An inverted index over texts, numbered in their order.

    A document's score is the sum over query terms of w - w / (1 + tf / norm), w = boost * idf in float32, where boost
    is how often the term stands in the query and norm = k1 * (1 - b + b * stored length / mean length). Ties go by the
    documents' ids, as Anserini breaks them. Eight bytes a posting.
    """

    def __init__(self, ids: Sequence[str], texts: Iterable[str]) -> None:
        """Analyze and index every text once; `ids` names them in the same order."""
        documents: dict[str, array[int]] = {}
        counts: dict[str, array[int]] = {}
        lengths = array("i")
        for number, text in enumerate(texts):
            words = tokens(text)
            lengths.append(len(words))
            for term, count in Counter(words).items():
                if term not in documents:
                    documents[term], counts[term] = array("i"), array("i")
                documents[term].append(number)
                counts[term].append(count)
        self.size = len(lengths)
        self._rank = np.empty(self.size, np.int32)
        self._rank[sorted(range(self.size), key=ids.__getitem__)] = np.arange(self.size, dtype=np.int32)
        mean = np.float32(sum(lengths) / max(1, self.size))
        stored = np.array([stored_length(length) for length in lengths], np.float32)
        inverse_norm = ONE / (K1 * ((ONE - B) + B * stored / mean))
        self._terms = {
            term: self._posting(documents.pop(term), counts.pop(term), inverse_norm) for term in [*documents]
        }

    def _posting(self, documents: array[int], counts: array[int], inverse_norm: Floats) -> Posting:
        """(documents, growth, idf): the term adds idf - idf / growth to each; documents None: growth is for all."""
        found = np.array(documents, np.int32)
        growth = ONE + np.array(counts, np.float32) * inverse_norm[found]
        idf = np.float32(np.log(1 + (self.size - len(found) + 0.5) / (len(found) + 0.5)))
        if len(found) * DENSE <= self.size:
            return found, growth, idf
        everywhere = np.ones(self.size, np.float32)
        everywhere[found] = growth
        return None, everywhere, idf

    def search(self, query: str, k: int = RESULTS) -> list[tuple[int, float]]:
        """(document, score) of the best k documents that share a term with the query, best first."""
        boosts = Counter(term for term in tokens(query) if term in self._terms)
        total = np.zeros(self.size)
        for term, boost in sorted(boosts.items()):
            found, growth, idf = self._terms[term]
            weight = np.float32(boost) * idf
            if found is None:
                total += weight - weight / growth
            else:
                total[found] += weight - weight / growth
        score = total.astype(np.float32)
        floor = np.partition(score, -k)[-k] if self.size > k else np.float32(0)
        hits = np.flatnonzero((score >= floor) & (score > 0))
        best = hits[np.lexsort((self._rank[hits], -score[hits]))][:k]
        return [(int(number), float(score[number])) for number in best]
