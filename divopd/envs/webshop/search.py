"""Full-text search with Lucene's BM25 as Anserini sets it: the ranking the original WebShop shows."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from divopd.envs.webshop.analyzer import tokens

Floats = npt.NDArray[np.float32]

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
        self._numbers: dict[str, int] = {}
        terms, counts, distinct, lengths = array("i"), array("i"), array("i"), array("i")
        for text in texts:
            words = tokens(text)
            found = Counter(words)
            terms.extend(self._numbers.setdefault(term, len(self._numbers)) for term in found)
            counts.extend(found.values())
            distinct.append(len(found))
            lengths.append(len(words))
        self.size = len(lengths)
        self._rank = np.empty(self.size, np.int32)
        self._rank[sorted(range(self.size), key=ids.__getitem__)] = np.arange(self.size, dtype=np.int32)
        mean = np.float32(sum(lengths) / max(1, self.size))
        stored = np.array([stored_length(length) for length in lengths], np.float32)
        inverse_norm = ONE / (K1 * ((ONE - B) + B * stored / (mean or ONE)))
        # Postings lie by term, and within a term by document. A term adds idf - idf / growth to a document.
        documents = np.repeat(np.arange(self.size, dtype=np.int32), np.asarray(distinct))
        order = np.argsort(np.asarray(terms), kind="stable")
        self._documents = documents[order]
        self._growth = ONE + np.asarray(counts)[order].astype(np.float32) * inverse_norm[self._documents]
        frequency = np.bincount(np.asarray(terms), minlength=len(self._numbers))
        self._starts = np.concatenate([[0], np.cumsum(frequency)])
        self._idf = np.log(1 + (self.size - frequency + 0.5) / (frequency + 0.5)).astype(np.float32)
        self._dense = {int(term): self._spread(int(term)) for term in np.flatnonzero(frequency * DENSE > self.size)}

    def _spread(self, term: int) -> Floats:
        """A term's growth for every document: 1, which adds nothing, where the term is not."""
        everywhere = np.ones(self.size, np.float32)
        span = slice(self._starts[term], self._starts[term + 1])
        everywhere[self._documents[span]] = self._growth[span]
        return everywhere

    def search(self, query: str, k: int = RESULTS) -> list[tuple[int, float]]:
        """(document, score) of the best k documents that share a term with the query, best first."""
        boosts = Counter(self._numbers[term] for term in sorted(tokens(query)) if term in self._numbers)
        total = np.zeros(self.size)
        for term, boost in boosts.items():
            weight = np.float32(boost) * self._idf[term]
            dense = self._dense.get(term)
            if dense is not None:
                total += weight - weight / dense
            else:
                span = slice(self._starts[term], self._starts[term + 1])
                total[self._documents[span]] += weight - weight / self._growth[span]
        score = total.astype(np.float32)
        floor = np.partition(score, -k)[-k] if self.size > k else np.float32(0)
        hits = np.flatnonzero((score >= floor) & (score > 0))
        best = hits[np.lexsort((self._rank[hits], -score[hits]))][:k]
        return [(int(number), float(score[number])) for number in best]
