"""The store's named statements, for one schema."""

import re

from dutiful.stores.statements import Statements, load

_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)


def statements(schema: str) -> Statements:
    """Without their comments: some drivers would look for parameters in them."""
    loaded = load("dutiful.stores.postgres")
    return Statements({name: _COMMENT.sub("", text).replace("{schema}", schema) for name, text in loaded.items()})
