"""The source files that the tests of style read, and their names."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = [path for folder in ("ctxd", "ctxd_client", "protocol") for path in sorted((ROOT / folder).rglob("*.py"))]
BESIDE_IT = [path for folder in ("tests", "bench") for path in sorted((ROOT / folder).rglob("*.py"))]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
