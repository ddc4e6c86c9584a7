"""Takes the pictures of docs/images anew: python -m tests.browser.pictures"""

from __future__ import annotations

import os
import sys

import pytest

from tests.workers import ROOT

if __name__ == "__main__":
    os.environ["PERDURE_PICTURES"] = str(ROOT / "docs" / "images")
    sys.exit(pytest.main([str(ROOT / "tests" / "browser"), *sys.argv[1:]]))
