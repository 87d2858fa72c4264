"""What a harvest says in numbers: norms in a region by recipe, reasons of the others, families left out.

Reads the records that `tools/corpus.py` appends, writes the corpus and a page of tables in Markdown.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lab.corpus import Entry, extended, from_dict, merged, save
from lab.tables import table
from mixorder.errors import DeclineReason

Record = dict[str, Any]
DECLINES = tuple(reason.value for reason in DeclineReason)
# Declined by a prediction or a size; for all other reasons there would be no kernel.
DECISIONS = (DeclineReason.SLOWER.value, DeclineReason.MEMORY.value, DeclineReason.TOO_SMALL.value)
CLASSES = ("in a region", *DECISIONS, "cannot")
NUMBER = re.compile(r"\d+(\.\d+)?")  # reasons that differ by numbers alone are counted as one
EXAMPLES = 4


def write(records: Path, out: Path, keep: Sequence[Entry] = ()) -> str:
    """Write the corpus to `out` and the tables beside it. Returns the tables. The entries of `keep` stay as
    they are; the records add what they have of other families and recipes. The tables are of the records."""
    found = last_of_each(map(json.loads, records.read_text().splitlines()))
    harvested = merged(from_dict(plain) for one in found for plain in one.get("entries", ()))
    entries = extended(keep, harvested)
    save(out, entries)
    text = tables(found) + f"\n\n{out.name}: {len(entries)} entries, {out.stat().st_size / 1e6:.2f} MB\n"
    out.with_name(out.name.split(".")[0] + ".md").write_text(text)
    return text


def last_of_each(records: Iterable[Record]) -> list[Record]:
    """One record per family and recipe: the last."""
    return list({(one["family"], one["recipe"]): one for one in records}.values())


def tables(records: Sequence[Record]) -> str:
    parts = {
        "Norms by recipe": _norms(records),
        "Why norms with a pair are in no region": _reasons(records, True),
        "Norms without a pair": _reasons(records, False),
        "Families left out": _errors(records),
    }
    return "\n\n".join(f"## {title}\n\n{text}" for title, text in parts.items())


def has_pair(reason: str) -> bool:
    """Whether a norm with this reason is in a region, or was found and declined."""
    return not reason or reason.partition(":")[0] in DECLINES


def _recipes(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(one["recipe"] for one in records))


def norms_of(records: Iterable[Record]) -> Counter[str]:
    """How many norms with a pair are in a region, how many mixorder could fuse and decided not to, by reason,
    and how many it cannot fuse."""
    counts = Counter[str]()
    for one in records:
        for _, reason, n in one.get("norms", ()):
            if has_pair(reason):
                counts[_class(reason.partition(":")[0])] += n
    return counts


def _class(reason: str) -> str:
    if not reason:
        return "in a region"
    return reason if reason in DECISIONS else "cannot"


def _norms(records: Sequence[Record]) -> str:
    rows = []
    for recipe in _recipes(records):
        mine = [one for one in records if one["recipe"] == recipe]
        good = [one for one in mine if not one.get("error")]
        norms, pairs = sum(n for one in good for *_, n in one["norms"]), norms_of(good)
        numbers = (len(good), len(mine) - len(good), norms, pairs.total(), *(pairs[c] for c in CLASSES))
        shares = _share(pairs, CLASSES), _share(pairs, ("in a region", "cannot"))
        rows.append([recipe, *map(str, numbers), *shares])
    titles = ("recipe", "families", "left out", "norms", "with a pair", *CLASSES)
    return table((*titles, "share", "decisions aside"), rows)


def _share(counts: Counter[str], classes: Sequence[str]) -> str:
    whole = sum(counts[one] for one in classes)
    return f"{100 * counts[CLASSES[0]] / whole:.1f}%" if whole else "-"


def _reasons(records: Sequence[Record], paired: bool) -> str:
    counts, where = Counter[tuple[str, str]](), defaultdict[tuple[str, str], Counter[str]](Counter)
    for one in records:
        for _, reason, n in one.get("norms", ()):
            if reason and has_pair(reason) is paired:
                key = one["recipe"], NUMBER.sub("#", reason)
                counts[key] += n
                where[key][one["family"]] += n
    rows = [
        [recipe, str(n), reason[:140].replace("|", "/"), _examples(where[recipe, reason])]
        for (recipe, reason), n in counts.most_common()
    ]
    return table(("recipe", "norms", "reason", "families"), rows) if rows else "None."


def _examples(families: Counter[str]) -> str:
    named = [f"{family} {n}" for family, n in families.most_common(EXAMPLES)]
    more = len(families) - EXAMPLES
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def _errors(records: Sequence[Record]) -> str:
    found = defaultdict[str, list[str]](list)
    for one in records:
        if one.get("error"):
            found[one["error"][:200].replace("|", "/")].append(f"{one['family']} {one['recipe']}")
    rows = [[", ".join(names), error] for error, names in sorted(found.items(), key=lambda x: -len(x[1]))]
    return table(("family and recipe", "error"), rows) if rows else "None."
