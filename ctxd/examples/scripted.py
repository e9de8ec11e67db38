"""A scripted model that needs no key, and the small broken project that it fixes.

Owns the surroundings of the examples, not the loop: a harness has a real model and a real working tree instead.
"""

import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple


class ToolCall(NamedTuple):
    """Tool call of the model: a shell command in the working tree, and the file that it reads or edits, if any."""

    tool: str
    command: str
    path: str | None = None


class ModelStep(NamedTuple):
    """Response of the model: its text and tool calls. Without tool calls the turn ends."""

    text: str
    calls: tuple[ToolCall, ...] = ()


Model = Callable[[str], ModelStep]
"""A model takes the context and returns a step."""


def scripted(steps: Iterable[ModelStep]) -> Model:
    """Model with scripted responses, whatever its input."""
    coming = iter(steps)
    return lambda context: next(coming)


TEST = f"{shlex.quote(sys.executable)} -m unittest discover -s tests -t ."
LOOK = ModelStep(
    "I look at what there is, and at the code that sums up.",
    (ToolCall("list", "ls -1 shop tests"), ToolCall("grep", "grep -n 'def ' shop/cart.py shop/price.py")),
)
READ = ModelStep(
    "The sum is made here.", (ToolCall("read", "cat shop/cart.py", "shop/cart.py"), ToolCall("test", TEST))
)
GLANCE = ModelStep("I read the code that sums up.", (ToolCall("read", "cat shop/cart.py", "shop/cart.py"),))
FIX = ModelStep(
    "It forgets the quantity.", (ToolCall("edit", "sed -i 's/price(n)/price(n) * q/' shop/cart.py", "shop/cart.py"),)
)
CHECK = ModelStep("Now the tests.", (ToolCall("test", TEST),))


def make_tree(root: Path) -> Path:
    """Create a small project with one bug below ``root``; return its directory as a canonical path."""
    cart = '"""What is in the cart."""\n\nfrom shop.price import price\n\n\ndef total(items):\n    '
    cart += '"""The sum of (name, quantity) pairs, in cents."""\n    return sum(price(n) for n, q in items)\n'
    test = "import unittest\n\nfrom shop.cart import total\n\n\nclass CartTest(unittest.TestCase):\n"
    test += '    def test_two_apples(self):\n        self.assertEqual(total([("apple", 2)]), 60)\n'
    price = 'PRICES = {"apple": 30, "pear": 45}\n\n\ndef price(name):\n    return PRICES[name]\n'
    files = {"shop/__init__.py": "", "shop/cart.py": cart, "shop/price.py": price}
    for name, text in {**files, "tests/__init__.py": "", "tests/test_cart.py": test}.items():
        path = root / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return (root / "project").resolve()
