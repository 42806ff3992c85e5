"""`python -m examples.docverse` publishes documentation, lets builds race and fail, then checks the results."""

import argparse
import asyncio
import logging
import os
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

from redis import Redis, RedisError
from rich.console import Console

from dutiful import UsageError
from examples.docverse.processes import WorkerEnded
from examples.docverse.story import Servers, run_story, serve
from examples.servers import own_redis, own_server
from examples.serving import ended_by_term

PORT = 8000  # of the edge; the API has the next one


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.docverse", description=__doc__)
    parser.add_argument(
        "--database-url",
        default=os.environ.get("DUTIFUL_DATABASE_URL"),
        help="a Postgres server; a database on it is made and dropped (default: a server of its own)",
    )
    parser.add_argument(
        "--delivery",
        choices=["store", "arq"],
        default="store",
        help="how jobs reach workers: by Postgres, or Arq on Redis",
    )
    parser.add_argument(
        "--redis-url",
        default=os.environ.get("DUTIFUL_REDIS_URL"),
        help="for --delivery arq (default: a Redis of its own)",
    )
    parser.add_argument(
        "--serve", action="store_true", help="publish sample pages and serve them at http://127.0.0.1:8000 until Ctrl-C"
    )
    parser.add_argument(
        "--port",
        type=int,
        default=PORT,
        help=f"for --serve (default: {PORT}); the API has the next one; 0 takes any two that are free",
    )
    chosen = parser.parse_args()
    if not 0 <= chosen.port < 65535:
        parser.error("--port must be from 0 to 65534, because the API has the next one")
    ports = (chosen.port, chosen.port + 1) if chosen.port else (0, 0)
    url: str | None = chosen.database_url
    if url and not url.startswith("postgres"):
        parser.error("--database-url must be postgresql://…; leave it out for a server of its own")
    logging.getLogger("dutiful").setLevel(logging.CRITICAL)  # the story prints what happens itself
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="docverse-")))
        try:
            redis = None
            if chosen.delivery == "arq":
                redis = _answering(chosen.redis_url) if chosen.redis_url else stack.enter_context(own_redis())
            servers = Servers(url or stack.enter_context(own_server()), redis)
            if chosen.serve:
                with suppress(KeyboardInterrupt):
                    asyncio.run(ended_by_term(serve(Console(), folder, servers, ports)))
                return 0
            return 0 if all(asyncio.run(ended_by_term(run_story(Console(), folder, servers))).values()) else 1
        except UsageError as error:
            parser.error(str(error))
        except WorkerEnded as error:
            print(error, file=sys.stderr)
            return 1


def _answering(redis_url: str) -> str:
    """The URL of a Redis that is there: for one that is away, jobs would wait, and this program with them."""
    try:
        with Redis.from_url(redis_url, socket_timeout=5, socket_connect_timeout=5) as redis:
            redis.ping()
    except (RedisError, ValueError) as error:
        raise UsageError(f"cannot connect to Redis ({error}); check the address, and that the server runs") from error
    return redis_url


sys.exit(main())
