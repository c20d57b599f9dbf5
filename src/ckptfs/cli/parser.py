"""Arguments: one parser for every command, whose errors are ours."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NoReturn

from ckptfs.errors import UsageError
from ckptfs.settings import near

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ours: one line, with what was probably meant.

    Args:
        prog: the command's name.
        description: what it does.
        epilog: examples; printed as it is written.
    """

    def __init__(self, prog: str, *, description: str, epilog: str = "") -> None:
        super().__init__(
            prog,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"See '{self.prog} --help'.")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse all of ``arguments``.

        Raises:
            UsageError: they are wrong.
        """
        namespace, extra = self.parse_known_args(arguments)
        if extra:
            parser: argparse.ArgumentParser = namespace.parser if "parser" in namespace else self
            self._refuse(parser, extra)
        return namespace

    @staticmethod
    def _refuse(parser: argparse.ArgumentParser, extra: Sequence[str]) -> NoReturn:
        name = extra[0].partition("=")[0]
        if not name.startswith("-"):
            raise UsageError(f"one argument too many: {extra[0]!r}", hint=f"See '{parser.prog} --help'.")
        options = parser._option_string_actions  # noqa: SLF001 - argparse tells its options nowhere else
        guess = near(name, options)
        hint = guess if guess.startswith("Did") else f"See '{parser.prog} --help'."
        raise UsageError(f"unknown option: {name}", hint=hint)


class Commands:
    """Collects the commands: each module adds its own."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parsers = parser.add_subparsers(metavar="COMMAND", required=False, parser_class=Parser, title="commands")
        self.names: list[str] = []

    def add(
        self, name: str, text: str, run: Callable[[argparse.Namespace], int], *, epilog: str
    ) -> argparse.ArgumentParser:
        """A parser for the command ``name`` that ``run`` carries out."""
        parser = self._parsers.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            epilog=epilog,
        )
        parser.set_defaults(run=run, parser=parser)
        self.names.append(name)
        return parser
