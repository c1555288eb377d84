#!/usr/bin/env python3
"""Fetch a retrieval task with labels that exist anyway into weights/packages, for `cargo run --release --example prune`.

Every package of the Debian archive has a short and a long English description; the short one must find its own long one
among those of many packages. The archive's index of English descriptions is taken through apt, into a folder of its own:
nothing is installed and the system's lists stay as they are. Needs Debian or a system derived from it, 20 MB of network.
Running it again does nothing once the files are there.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DEFAULT = Path(__file__).resolve().parent.parent / "weights" / "packages"
SEED = 2024
# Disjoint parts, in packages: what statistics are taken of, what methods are compared on, what was never looked at, and
# more texts to train on.
PARTS = {"calibration": 2000, "test": 1500, "final": 1500, "training": 12000}
# Shorter descriptions tell little, and most of them say the same.
FEWEST_WORDS = 20


class FetchError(Exception):
    """What went wrong and how to mend it, for the user to read."""


def run(command):
    try:
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except FileNotFoundError:
        raise FetchError(f"no {command[0]}: run this on Debian or a system derived from it, and copy weights/packages") from None
    if result.returncode != 0:
        told = result.stderr.decode(errors="replace").strip().splitlines()
        raise FetchError(f"`{' '.join(command[:3])}` failed: {told[-1] if told else 'it told nothing'}")
    return result.stdout


def indices(scratch):
    """The texts of the archive's package index and of its English descriptions, main part of the first suite."""
    if shutil.which("apt-get") is None:
        raise FetchError("no apt-get: run this on Debian or a system derived from it, and copy weights/packages")
    (scratch / "lists" / "partial").mkdir(parents=True)
    (scratch / "cache").mkdir()
    options = [
        f"Dir::State::lists={scratch}/lists",
        f"Dir::Cache={scratch}/cache",
        "Dir::State::status=/dev/null",
        "Acquire::Languages=en",
        "APT::Sandbox::User=root" if os.geteuid() == 0 else "APT::Sandbox::Seccomp=false",
    ]
    options = [part for option in options for part in ("-o", option)]
    run(["apt-get", "update", "--error-on=any", *options])
    listed = run(["apt-get", "indextargets", *options, "--format", "$(CREATED_BY)\t$(SUITE)\t$(CODENAME)\t$(COMPONENT)\t$(ORIGIN)\t$(FILENAME)"])
    rows = [line.split("\t") for line in listed.decode().splitlines()]
    rows = [row for row in rows if row[3] == "main" and row[4] == "Debian" and "-" not in row[1]]
    texts = {}
    for kind, _, codename, _, _, path in rows:
        if kind in ("Packages", "Translations") and kind not in texts:
            texts[kind] = (codename, run(["/usr/lib/apt/apt-helper", "cat-file", path]).decode())
    if set(texts) != {"Packages", "Translations"} or len({codename for codename, _ in texts.values()}) != 1:
        raise FetchError(
            "apt's sources list no Debian suite with a `main` part: expected a line such as `deb ... stable main`"
        )
    return texts["Packages"][0], texts["Packages"][1], texts["Translations"][1]


def paragraphs(text):
    """The stanzas of an index as maps of their fields."""
    for stanza in text.split("\n\n"):
        fields, name = {}, None
        for line in stanza.splitlines():
            if line[:1] in (" ", "\t"):
                fields[name] += "\n" + line[1:]
            elif ":" in line:
                name, value = line.split(":", 1)
                fields[name] = value.strip()
        if fields:
            yield fields


def descriptions(packages, translations):
    """One package a source, by name: that of the source's own name, else the first that has a long description."""
    sources = {}
    for fields in paragraphs(packages):
        # `Source: name (version)` where it is not the package's own name.
        sources.setdefault(fields["Package"], fields.get("Source", fields["Package"]).split(" ")[0])
    found = {}
    for fields in paragraphs(translations):
        package = fields["Package"]
        source = sources.get(package)
        short, _, long = fields.get("Description-en", "").partition("\n")
        long = " ".join(word for line in long.split("\n") if line.strip() != "." for word in line.split())
        if source is None or not short or len(long.split()) < FEWEST_WORDS:
            continue
        rank = (package != source, package)
        if source not in found or rank < found[source][0]:
            found[source] = (rank, {"package": package, "short": short, "long": long})
    return [found[source][1] for source in sorted(found)]


def publish(fresh, target):
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(fresh.iterdir()):
        os.replace(path, target / path.name)


def complete(path, count):
    """Whether a part is there with all its packages."""
    try:
        with path.open("rb") as lines:
            return sum(line.startswith(b"{") and line.endswith(b"}\n") for line in lines) == count
    except FileNotFoundError:
        return False


def fetch(target):
    if all(complete(target / f"{part}.jsonl", count) for part, count in PARTS.items()):
        print(f"{target} is complete")
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as scratch:
        scratch = Path(scratch)
        try:
            codename, packages, translations = indices(scratch)
            all_of_them = descriptions(packages, translations)
        except (IndexError, KeyError, UnicodeDecodeError) as error:
            raise FetchError(f"apt's indices are not what was expected ({error!r}): check the mirror in apt's sources") from None
        needed = sum(PARTS.values())
        if len(all_of_them) < needed:
            raise FetchError(f"the archive has {len(all_of_them)} such packages, {needed} are needed")
        random.Random(SEED).shuffle(all_of_them)
        fresh = scratch / "fresh"
        fresh.mkdir()
        begin = 0
        for part, count in PARTS.items():
            lines = [json.dumps(row, ensure_ascii=False) for row in all_of_them[begin : begin + count]]
            (fresh / f"{part}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
            begin += count
        about = {
            "suite": codename,
            "seed": SEED,
            "packages": len(all_of_them),
            "parts": PARTS,
            "index_sha256": hashlib.sha256(translations.encode()).hexdigest(),
        }
        (fresh / "about.json").write_text(json.dumps(about, indent=1) + "\n")
        publish(fresh, target)
    print(f"wrote {', '.join(PARTS)} to {target}: {needed} of {about['packages']} packages of {codename}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dir", type=Path, default=DEFAULT, help="target directory (default: %(default)s)")
    target = parser.parse_args().dir.absolute()
    try:
        fetch(target)
    except FetchError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: cannot write {target}: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted; nothing was left behind")


if __name__ == "__main__":
    main()
