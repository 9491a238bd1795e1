"""Unpacks the source distribution of xgrammar 0.2.9 (Apache-2.0) from PyPI into build/third_party.

    python3 scripts/fetch_xgrammar.py

The digest of the archive is pinned. cmake/xgrammar.cmake builds a static library from the unpacked sources.
"""

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "xgrammar"
VERSION = "0.2.9"
DIGEST = "87b466bca2475e29bb0323abc62c6c33cbcbcff47e5fb800a3e2099ac9620b90"
OUT = ROOT / "build/third_party"


def main() -> None:
    if (OUT / f"{PACKAGE}-{VERSION}" / "LICENSE").exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            + ["--no-binary", PACKAGE, "--dest", folder, f"{PACKAGE}=={VERSION}"],
            check=True,
        )
        archive = Path(folder) / f"{PACKAGE}-{VERSION}.tar.gz"
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        if digest != DIGEST:
            sys.exit(f"{archive.name} has the SHA-256 {digest}, not {DIGEST}")
        OUT.mkdir(parents=True, exist_ok=True)
        # Unpacked beside its place and renamed, so that an interrupted run leaves nothing half done.
        with tempfile.TemporaryDirectory(dir=OUT) as unpacked, tarfile.open(archive) as tar:
            tar.extractall(unpacked)  # the digest vouches for what is in it; Python 3.11.2 has no filters
            (Path(unpacked) / f"{PACKAGE}-{VERSION}").rename(OUT / f"{PACKAGE}-{VERSION}")


if __name__ == "__main__":
    main()
