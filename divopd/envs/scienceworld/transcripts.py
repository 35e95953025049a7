"""What the game said before: the same task and actions get the same answers, so they need no game.

A task's transcript is a tree of answers by action. Trees are kept in memory, the least recently used go first, and one
file a task on disk, which runs share: a file is read when its task starts and written with what this process added,
merged with what others wrote since.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import tempfile
import warnings
import zlib
from collections import OrderedDict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from divopd.envs.scienceworld.java import jar

FORMAT = 1
MAX_TASK = 20_000
"""Answers kept a task."""
MAX_MEMORY = 250_000
"""Answers kept in memory, some 0.6 kB each."""
MAX_DISK = 512 << 20
"""Bytes of one folder of files; the oldest go first."""
SAVE_EVERY = 4_000
"""New answers after which all is written."""


class Answer(NamedTuple):
    """What one action gave, as the game's `Reply`, and the listing after it."""

    text: str
    score: float
    completed: bool
    allowed: tuple[str, ...]


class Node:
    """A state: the answers known from here, and where each leads (back to here where it changed nothing)."""

    __slots__ = ("edges",)

    def __init__(self) -> None:
        self.edges: dict[str, tuple[Answer, Node]] = {}


class Transcript:
    """A task's tree. `first`: the answer to the look around that every episode starts with."""

    def __init__(self, goal: str, first: Answer) -> None:
        self.goal, self.first = goal, first
        self.root = Node()
        self.size = self.added = 0
        self._texts: dict[str, str] = {}

    def add(self, node: Node, action: str, answer: Answer, child: Node) -> bool:
        """Keep an answer; False where the tree is full."""
        if self.size >= MAX_TASK:
            return False
        text = self._texts.setdefault(answer.text, answer.text)
        node.edges[action] = (answer._replace(text=text), child)
        self.size += 1
        self.added += 1
        return True

    def merge(self, other: Transcript) -> None:
        """Take over what the other tree knows besides."""
        pairs = [(self.root, other.root)]
        while pairs:
            mine, theirs = pairs.pop()
            for action, (answer, child) in theirs.edges.items():
                if action not in mine.edges and not self.add(mine, action, answer, mine if child is theirs else Node()):
                    return
                if child is not theirs:
                    pairs.append((mine.edges[action][1], child))

    def pack(self) -> bytes:
        """As bytes: texts and listings once each, then one row an answer, parents before children."""
        texts: dict[Any, int] = {}

        def packed(answer: Answer) -> list[Any]:
            places = [texts.setdefault(item, len(texts)) for item in (answer.text, answer.allowed)]
            return [places[0], answer.score, answer.completed, places[1]]

        rows, queue = [], [self.root]
        first = packed(self.first)
        for number, node in enumerate(queue):
            for action, (answer, child) in node.edges.items():
                rows.append([number, action, number if child is node else len(queue), *packed(answer)])
                if child is not node:
                    queue.append(child)
        content = {"goal": self.goal, "first": first, "texts": list(texts), "rows": rows}
        return zlib.compress(json.dumps(content, separators=(",", ":")).encode(), 1)

    @classmethod
    def unpack(cls, content: bytes) -> Transcript:
        """Of bytes made by `pack`. Raises zlib.error, ValueError, LookupError or TypeError for others."""
        data = json.loads(zlib.decompress(content))
        texts: list[Any] = [tuple(item) if isinstance(item, list) else item for item in data["texts"]]

        def answer(text: int, score: float, completed: bool, allowed: int) -> Answer:
            return Answer(texts[text], score, completed, texts[allowed])

        made = cls(data["goal"], answer(*data["first"]))
        nodes = [made.root]
        for parent, action, child, *rest in data["rows"]:
            if child == len(nodes):
                nodes.append(Node())
            nodes[parent].edges[action] = (answer(*rest), nodes[child])
        made.size = len(data["rows"])
        return made


class TranscriptStore:
    """Transcripts of one way to play (simplifications, listing). Not thread-safe.

    `hits` and `misses` count actions answered from here and by the game.
    """

    def __init__(self, folder: Path | None) -> None:
        """`folder`: where files are kept, made when first needed; None keeps nothing on disk."""
        self.folder = folder
        self.hits = self.misses = 0
        self._trees: OrderedDict[str, Transcript] = OrderedDict()
        self._owner = os.getpid()

    def find(self, task: str) -> Transcript | None:
        """What is known of a task, if anything."""
        if (found := self._trees.get(task)) is not None:
            self._trees.move_to_end(task)
        elif (found := self._read(task)) is not None:
            self._keep(task, found)
        return found

    def begin(self, task: str, goal: str, first: Answer) -> Transcript:
        """A new transcript of a task that is not known."""
        made = Transcript(goal, first)
        made.added = 1  # its start is worth a file
        self._keep(task, made)
        return made

    def note(self, hit: bool) -> None:
        """Count an action, and save now and then."""
        self.hits += hit
        self.misses += not hit
        if not hit and self.misses % SAVE_EVERY == 0:
            self.save()

    def save(self) -> None:
        """Write what is new. A failure is a warning: the game goes on without."""
        if os.getpid() == self._owner:
            for task, tree in self._trees.items():
                self._write(task, tree)
            self._trim()

    def _keep(self, task: str, tree: Transcript) -> None:
        self._trees[task] = tree
        size = sum(tree.size for tree in self._trees.values())
        while size > MAX_MEMORY and len(self._trees) > 1:
            name, old = self._trees.popitem(last=False)
            self._write(name, old)
            size -= old.size

    def _path(self, task: str) -> Path | None:
        return None if self.folder is None else self.folder / (task.replace("/", "-") + ".json.z")

    def _read(self, task: str) -> Transcript | None:
        path = self._path(task)
        if path is None:
            return None
        try:
            return Transcript.unpack(path.read_bytes())
        # Missing, or cut short, or not ours: as if it were not there. zlib's checksum finds damage.
        except (OSError, zlib.error, ValueError, LookupError, TypeError):
            return None

    def _write(self, task: str, tree: Transcript) -> None:
        path = self._path(task)
        if path is None or not tree.added:
            return
        if (other := self._read(task)) is not None:
            tree.merge(other)
        tree.added = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
            with os.fdopen(handle, "wb") as file:
                file.write(tree.pack())
            os.replace(name, path)
        except OSError as error:
            warnings.warn(f"cannot keep transcripts in {path.parent}: {error.strerror}", stacklevel=2)

    def _trim(self) -> None:
        """Bound the folder. Other processes may do the same at the same time."""
        found = []
        for path in self.folder.glob("*.z") if self.folder else ():
            try:
                state = path.stat()
            except FileNotFoundError:
                continue
            found.append((state.st_mtime, path, state.st_size))
        size = sum(item[2] for item in found)
        for _, path, bytes_ in sorted(found):
            if size <= MAX_DISK:
                return
            path.unlink(missing_ok=True)
            size -= bytes_


@cache
def _jar_digest() -> str:
    return hashlib.sha256(jar().read_bytes()).hexdigest()


@cache
def shared_store(cache_dir: Path | None, simplifications: str, listing: str) -> TranscriptStore:
    """One store a process for these settings; its folder is named by what the answers depend on."""
    key = hashlib.sha256(json.dumps([FORMAT, _jar_digest(), simplifications, listing]).encode()).hexdigest()
    store = TranscriptStore(None if cache_dir is None else cache_dir / "scienceworld" / key[:16])
    atexit.register(store.save)
    return store
