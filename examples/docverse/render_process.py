"""Renders pages of one project: reads templates and values as JSON from stdin, writes the pages as JSON to stdout.

A program of its own, because templates of organizations may loop for ever or fill the memory; see rendering.py.
"""

import json
import resource
import sys
from collections.abc import Mapping
from typing import Any

from jinja2 import DictLoader
from jinja2.sandbox import SandboxedEnvironment


def render_now(templates: Mapping[str, str], names: list[str], shown: Mapping[str, Any]) -> dict[str, str]:
    # Templates come from repositories of the organizations, so they are not trusted with more than what is shown.
    environment = SandboxedEnvironment(loader=DictLoader(dict(templates)), autoescape=True)
    return {name: environment.get_template(name).render(shown) for name in names}


def main() -> None:
    asked = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CPU, (asked["seconds"], asked["seconds"]))
    resource.setrlimit(resource.RLIMIT_AS, (asked["memory"], asked["memory"]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    try:
        pages = render_now(asked["templates"], asked["names"], asked["shown"])
        for text in pages.values():
            text.encode()
        answer: dict[str, Any] = {"pages": pages}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"[:300]}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
